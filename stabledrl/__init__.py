"""StableDRL: reinforcement learning for diffusion language models that does not collapse."""

__version__ = "0.1.0"
