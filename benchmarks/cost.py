"""What a model costs, from its sizes: parameters, floating-point operations, bytes.

Formulas for the Llama of LLaDA, Dream, SDAR without grouped queries and biases: pure functions of
whole numbers, which tests hold against PyTorch's own counts. A multiplication and the addition that
follows it are two operations (FLOP); element-wise operations and the embedding are not counted.
"""

from __future__ import annotations

from dataclasses import dataclass

from stabledrl.functional.decoding import transfer_quota

BF16, FLOAT32 = 2, 4  # bytes of a number


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


def layer_activations(shape: Shape, length: int, rank: int | None = None) -> int:
    """Bytes per token that a layer in bfloat16 keeps for its backward pass, without checkpointing.

    All parameters trained: 24h + 8f + c. Two norms keep their input in float32, it again divided by
    its norm, and their output (8h each); attention queries, keys, values and its output (8h); the
    feed-forward part four tensors (8f). c = 2T + 4a + 8: the mask as a bias, and what attention and
    the norms divided by.
    LoRA of this rank: 40h + 10f + 28·rank + c: no input of a frozen matrix is kept, but that of
    each of the seven projections once more, in the adapter's float32.
    """
    hidden, feedforward = shape.hidden_size, shape.feedforward_size
    small = BF16 * length + FLOAT32 * shape.heads + 2 * FLOAT32
    if rank is None:
        return 24 * hidden + 8 * feedforward + small
    return 40 * hidden + 10 * feedforward + 7 * FLOAT32 * rank + small


def activations(
    shape: Shape, rows: int, length: int, checkpointing: bool, rank: int | None = None
) -> int:
    """Bytes of activations at the end of the forward pass; of all layers, last norm left out.

    checkpointing: the input of each layer (2h per token), and one layer while it is run again.
    """
    layer = layer_activations(shape, length, rank)
    kept = (
        BF16 * shape.hidden_size * shape.layers + layer if checkpointing else layer * shape.layers
    )
    return rows * length * kept


def output_bytes(shape: Shape, scored: float) -> float:
    """Bytes of the output layer in the backward pass: 10·V at each scored position.

    Log-probabilities and their gradient in float32, the gradient of the logits in bfloat16.
    """
    return (2 * FLOAT32 + BF16) * shape.vocabulary * scored


def decoding_bytes(shape: Shape, rows: int, decoding: Decoding) -> int:
    """Bytes beside the weights while `rows` completions are decoded together.

    Formula: rows·(T·(4h + 6f) + 12·V·block). A layer without gradient holds two hidden states and
    three of its feed-forward part; drawing tokens holds three float32 copies of the logits at the
    masked positions, all of the block at first. They are not held together, so this is an upper
    bound.
    """
    layer = 2 * BF16 * shape.hidden_size + 3 * BF16 * shape.feedforward_size
    drawing = 3 * FLOAT32 * shape.vocabulary * decoding.block_length
    return rows * (decoding.context * layer + drawing)


@dataclass(frozen=True)
class Stored:
    """Bytes that training keeps from step to step.

    weights: of the model, and of an adapter. gradients, moments: of what is trained (AdamW has two
    moments). copies: of weights in bfloat16 that autocast makes and holds through a pass.
    """

    weights: int
    gradients: int
    moments: int
    copies: int = 0

    @property
    def kept(self) -> int:
        """Weights, gradients and moments."""
        return self.weights + self.gradients + self.moments


def stored_full(shape: Shape, number: int) -> Stored:
    """All parameters trained, numbers of 2 bytes (bfloat16) or of 4 (float32, under bf16-mixed).

    Gradients and AdamW's moments have the precision of the weights.
    """
    weights = number * shape.parameters
    copies = BF16 * shape.parameters if number == FLOAT32 else 0
    return Stored(weights, weights, 2 * weights, copies)


def stored_adapter(shape: Shape, rank: int) -> Stored:
    """A frozen model in bfloat16 and LoRA in float32."""
    adapter = FLOAT32 * shape.adapter_parameters(rank)
    return Stored(BF16 * shape.parameters + adapter, adapter, 2 * adapter)


def one_gpu(stored: Stored, reference: int) -> float:
    """Bytes at their most, activations apart: kept, and what is there for a while.

    reference: bytes of the frozen copy. For a while: autocast's copies in a pass, or in AdamW's
    step a temporary of the size of one moment (`foreach`, which PyTorch chooses on a GPU).
    """
    return stored.kept + reference + max(stored.copies, stored.moments / 2)


def ddp_gpu(stored: Stored, reference: int) -> float:
    """The same for each of several processes with a whole model.

    DDP sends gradients from buckets, a second copy of them.
    """
    return one_gpu(stored, reference) + stored.gradients


def fsdp_gpu(stored: Stored, reference: int, processes: int, shape: Shape) -> float:
    """The same where weights, gradients, moments and reference are divided.

    Whole, for a while: weights of the root and of two layers (the next is fetched early), gradients
    of the root and of one layer; autocast's copies are of gathered weights, so of all of them.
    """
    number = stored.weights // shape.parameters
    gathered = number * (2 * shape.root_parameters + 3 * shape.layer_parameters)
    divided = (stored.kept + reference) / processes
    return divided + max(gathered + stored.copies, stored.moments / 2 / processes)
