"""What a model costs, from its sizes: parameters and floating-point operations.

Formulas for the Llama of LLaDA, Dream, SDAR without grouped queries and biases: pure functions of
whole numbers, which tests hold against PyTorch's own counts. A multiplication and the addition that
follows it are two operations (FLOP); element-wise operations and the embedding are not counted.
"""

from __future__ import annotations

from dataclasses import dataclass

from stabledrl.functional.decoding import transfer_quota


@dataclass(frozen=True)
class Shape:
    """Sizes of a decoder: as many heads of keys as of queries, no biases, nothing tied.

    hidden_size: h. layers: ℓ. heads: a. feedforward_size: f. vocabulary: V, rows of the embedding.
    Raises ValueError if the heads do not divide the width into even parts.
    """

    hidden_size: int
    layers: int
    heads: int
    feedforward_size: int
    vocabulary: int

    def __post_init__(self) -> None:
        if self.hidden_size % (2 * self.heads):
            raise ValueError(
                f"{self.heads} heads do not divide a hidden size of {self.hidden_size} "
                "into parts of even length"
            )

    @property
    def layer_matrices(self) -> int:
        """Weights of a layer that multiply every token: 4·h² + 3·h·f."""
        return 4 * self.hidden_size**2 + 3 * self.hidden_size * self.feedforward_size

    @property
    def layer_parameters(self) -> int:
        """Those and the scales of two norms."""
        return self.layer_matrices + 2 * self.hidden_size

    @property
    def root_parameters(self) -> int:
        """What is in no layer: embedding, output layer, last norm: 2·V·h + h."""
        return 2 * self.vocabulary * self.hidden_size + self.hidden_size

    @property
    def parameters(self) -> int:
        """All of them."""
        return self.layers * self.layer_parameters + self.root_parameters

    def adapter_parameters(self, rank: int) -> int:
        """Of LoRA on all seven projections: rank·(inputs + outputs) each."""
        sides = 4 * 2 * self.hidden_size + 3 * (self.hidden_size + self.feedforward_size)
        return self.layers * rank * sides


LLADA_8B = Shape(
    hidden_size=4096, layers=32, heads=32, feedforward_size=12288, vocabulary=126464
)  # GSAI-ML/LLaDA-8B-Instruct


def layer_flops(shape: Shape, rows: float, length: int) -> float:
    """Of one forward pass through all layers, `rows` sequences of `length` tokens.

    Formula: ℓ·rows·(2·(4h² + 3hf)·T + 4·T²·h): matrices, then Q·Kᵀ and its product with V, in which
    every token sees every other.
    """
    matrices = 2 * shape.layer_matrices * length
    attention = 4 * length**2 * shape.hidden_size
    return shape.layers * rows * (matrices + attention)


def forward_flops(shape: Shape, rows: float, length: int, scored: float) -> float:
    """Of one forward pass whose output layer runs at `scored` positions, of all rows together.

    Formula: that of `layer_flops` + 2·h·V·scored.
    """
    return layer_flops(shape, rows, length) + 2 * shape.hidden_size * shape.vocabulary * scored


def update_flops(
    shape: Shape, rows: float, length: int, scored: float, recomputed: bool = False
) -> float:
    """Of a forward and backward pass over all parameters: 3 forward passes.

    The backward pass takes the gradient of both factors of every product. recomputed: with
    activation checkpointing, the layers once more up to their last product (h·f), of which nothing
    is needed. Utilisation is by custom reckoned without it.
    """
    flops = 3 * forward_flops(shape, rows, length, scored)
    if recomputed:
        last = 2 * shape.hidden_size * shape.feedforward_size * length
        flops += layer_flops(shape, rows, length) - shape.layers * rows * last
    return flops


@dataclass(frozen=True)
class Decoding:
    """Sizes of a completion in the making, as of `samplers.semi_autoregressive`, no threshold.

    prompt_length, length: tokens. block_length: tokens denoised together. steps: forward passes,
    each over prompt and completion: there is no cache of keys and values.
    """

    prompt_length: int
    length: int
    block_length: int
    steps: int

    @property
    def context(self) -> int:
        """T, tokens of prompt and completion."""
        return self.prompt_length + self.length

    @property
    def scored(self) -> int:
        """Positions that the output layer runs at, over all passes of a completion.

        Those of the block that are masked yet: Σ_passes (block − what earlier passes committed).
        """
        blocks = self.length // self.block_length
        quota = transfer_quota(self.block_length, self.steps // blocks)
        return blocks * sum(sum(quota[at:]) for at in range(len(quota)))


def rollout_flops(shape: Shape, completions: int, decoding: Decoding) -> float:
    """Of decoding completions none of which ends early: steps × a forward pass over all tokens."""
    passes = forward_flops(shape, decoding.steps, decoding.context, decoding.scored)
    return completions * passes
