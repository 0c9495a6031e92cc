"""Rollout, likelihood and update of a model with random weights, timed on one device."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM

from benchmarks.cost import Decoding, Shape, forward_flops, rollout_flops, update_flops
from stabledrl.estimators.elbo import Elbo
from stabledrl.models.acceleration import Acceleration
from stabledrl.models.checkpoint import Checkpoint
from stabledrl.models.llada import native_config
from stabledrl.models.tiny import character_tokenizer
from stabledrl.policy import AdapterFacts, Policy
from stabledrl.samplers.semi_autoregressive import SemiAutoregressive
from stabledrl.types import Corruption, Sequences

BETAS, CLIP = (0.9, 0.99), 1.0  # as conf/optimizer and conf/trainer have them


@dataclass(frozen=True)
class Settings:
    """What is run. completions: decoded together, scored together, in an update together.

    draws: masks per completion, so that likelihood and update see draws × completions rows.
    repeats: of likelihood and update, after one that is not timed.
    """

    shape: Shape
    decoding: Decoding
    completions: int
    draws: int
    repeats: int
    activation_checkpointing: bool
    compile: bool


@dataclass(frozen=True)
class Measured:
    """One row: wall seconds, tokens and FLOP of one run, bytes at their most (None: not known)."""

    name: str
    seconds: float
    tokens: int
    flops: float
    memory: int | None


def build(shape: Shape, device: torch.device, dtype: torch.dtype) -> Policy:
    """LLaDA of these sizes with random weights, made on the device. No token ends a completion.

    The mask token is the last row of the vocabulary. The tokenizer is the tiny model's, and unused.
    """
    published = {
        "embedding_size": shape.vocabulary,
        "d_model": shape.hidden_size,
        "n_heads": shape.heads,
        "n_layers": shape.layers,
        "mlp_hidden_size": shape.feedforward_size,
        "rms_norm_eps": 1e-5,
        "rope_theta": 500_000.0,
        "max_sequence_length": 4096,
    }
    config = native_config(Checkpoint("random weights", Path(), published))
    with torch.device(device), torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        backbone = AutoModelForCausalLM.from_config(config, dtype=dtype, attn_implementation="sdpa")
    facts = AdapterFacts(mask_token_id=shape.vocabulary - 1, end_token_ids=(), pad_token_id=0)
    return Policy(backbone, character_tokenizer(), facts)


def sampler_of(decoding: Decoding) -> SemiAutoregressive:
    """LLaDA's decoding, which makes every pass; ValueError for sizes that do not fit together."""
    return SemiAutoregressive(decoding.length, decoding.block_length, decoding.steps)


def clock(device: torch.device) -> float:
    """Seconds, once everything that was asked of the device is done."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


def timed(
    device: torch.device, run: Callable[[], object], repeats: int
) -> tuple[float, int | None]:
    """Mean seconds of `repeats` runs, and the bytes allocated on a GPU at their most."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    start = clock(device)
    for _ in range(repeats):
        run()
    seconds = (clock(device) - start) / repeats
    on_gpu = device.type == "cuda"
    return seconds, torch.cuda.max_memory_allocated(device) if on_gpu else None


def random_prompts(settings: Settings, device: torch.device) -> torch.Tensor:
    """Token ids, none of them the mask token."""
    size = (settings.completions, settings.decoding.prompt_length)
    generator = torch.Generator().manual_seed(1)
    return torch.randint(settings.shape.vocabulary - 1, size, generator=generator).to(device)


def measure_rollout(policy: Policy, settings: Settings) -> tuple[Measured, Sequences]:
    """Decode all completions together; before, and not timed, with a pass per block."""
    decoding, device = settings.decoding, policy.device
    prompt = random_prompts(settings, device)
    visible = torch.ones_like(prompt, dtype=torch.bool)
    sampler = sampler_of(decoding)
    short = sampler_of(replace(decoding, steps=sampler.blocks))
    generator = torch.Generator().manual_seed(2)
    uniform = sampler.draw(len(prompt), generator).to(device)
    short(policy, prompt, visible, uniform[:, : short.steps])
    found = []
    seconds, memory = timed(
        device, lambda: found.append(sampler(policy, prompt, visible, uniform)), 1
    )
    ids = found[0].ids
    flops = rollout_flops(settings.shape, len(ids), decoding)
    row = Measured("rollout", seconds, ids.numel(), flops, memory)
    return row, Sequences(prompt, visible, ids, torch.ones_like(ids, dtype=torch.bool))


def repeated(
    name: str,
    policy: Policy,
    settings: Settings,
    tokens: int,
    flops: float,
    run: Callable[[], object],
) -> Measured:
    """A row of what is run once untimed, then `settings.repeats` times."""
    run()
    seconds, memory = timed(policy.device, run, settings.repeats)
    return Measured(name, seconds, tokens, flops, memory)


def measure_scoring(policy: Policy, settings: Settings, sequences: Sequences) -> list[Measured]:
    """The ELBO of all completions without gradient, then an update of all parameters with it."""
    estimator = Elbo(settings.draws)
    generator = torch.Generator().manual_seed(3)
    corruption = estimator.draw(sequences, len(sequences), generator)
    rows, context = settings.draws * len(sequences), settings.decoding.context
    scored = int((corruption.mask & sequences.completion_mask).sum())
    optimizer = torch.optim.AdamW(policy.parameters(), lr=1e-6, betas=BETAS)

    @torch.no_grad()
    def likelihood() -> None:
        estimator(policy, sequences, corruption)

    def update() -> None:
        step(policy, optimizer, estimator, sequences, corruption)

    shape = settings.shape
    forward = forward_flops(shape, rows, context, scored)
    both = update_flops(shape, rows, context, scored)
    return [
        repeated("likelihood", policy, settings, rows * context, forward, likelihood),
        repeated("update", policy, settings, rows * context, both, update),
    ]


def step(
    policy: Policy,
    optimizer: torch.optim.Optimizer,
    estimator: Elbo,
    sequences: Sequences,
    corruption: Corruption,
) -> None:
    """Forward and backward pass, clipping of the gradient's norm, step of the optimiser."""
    loss = -estimator(policy, sequences, corruption).value.mean()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(policy.parameters(), CLIP)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)


def measure(settings: Settings, device: torch.device) -> list[Measured]:
    """Rollout, likelihood and update, one after the other."""
    policy = build(settings.shape, device, torch.bfloat16)
    policy = Acceleration(settings.activation_checkpointing, settings.compile)(policy).train()
    rollout, sequences = measure_rollout(policy, settings)
    return [rollout, *measure_scoring(policy, settings, sequences)]
