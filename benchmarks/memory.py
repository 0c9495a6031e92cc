"""Memory of training, from a model's sizes: what is kept, and what is there for a while.

Formulas, in bytes; tests hold them against what autograd keeps. Buffers of NCCL, the CUDA context
and what the allocator cannot use are not in them.
"""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.cost import Decoding, Shape

BF16, FLOAT32 = 2, 4  # bytes of a number


@dataclass(frozen=True)
class Activations:
    """Bytes per token that a layer keeps for its backward pass, as multiples of h and f.

    Formula: hidden·h + feedforward·f + adapter + 2T + 4a + 8. The last three are the mask as a
    bias, and what attention and two norms divided by.
    entering: multiple of h that is the layer's input, all that activation checkpointing keeps.
    """

    hidden: int
    feedforward: int
    entering: int
    adapter: int = 0


# Two norms keep input (float32), the same divided by its norm, and output: 8h each. Attention keeps
# queries, keys, values and its output: 8h. The feed-forward part keeps four tensors: 8f.
ALL_BF16 = Activations(hidden=24, feedforward=8, entering=2)
# Under bf16-mixed hidden states are float32, and each of five projections casts its own input.
ALL_MIXED = Activations(hidden=34, feedforward=8, entering=4)


def low_rank(rank: int) -> Activations:
    """Of LoRA on all projections of a model in bfloat16.

    No input of a frozen matrix is kept, but that of each of the seven projections once more in the
    adapter's float32, and what A made of it.
    """
    return Activations(hidden=40, feedforward=10, entering=2, adapter=7 * FLOAT32 * rank)


def layer_activations(shape: Shape, length: int, kept: Activations) -> int:
    """Bytes per token that a layer keeps, in sequences of `length` tokens."""
    small = BF16 * length + FLOAT32 * shape.heads + 2 * FLOAT32
    hidden, feedforward = shape.hidden_size, shape.feedforward_size
    return kept.hidden * hidden + kept.feedforward * feedforward + kept.adapter + small


def activations(
    shape: Shape, rows: int, length: int, kept: Activations, checkpointing: bool
) -> int:
    """Bytes of all layers at their most; the last norm is left out.

    checkpointing: the input of each layer, and one layer while it is run again.
    """
    layer = layer_activations(shape, length, kept)
    entering = shape.layers * kept.entering * shape.hidden_size
    return rows * length * (entering + layer if checkpointing else shape.layers * layer)


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


def one_gpu(stored: Stored, reference: int, passing: float) -> float:
    """Bytes at their most: kept, and what is there for a while.

    reference: bytes of the frozen copy. passing: of activations and output layer. For a while:
    these and autocast's copies, or in AdamW's step a temporary of the size of one moment
    (`foreach`, which PyTorch chooses on a GPU).
    """
    return stored.kept + reference + max(passing + stored.copies, stored.moments / 2)


def ddp_gpu(stored: Stored, reference: int, passing: float) -> float:
    """The same for each of several processes with a whole model.

    DDP sends gradients from buckets, a second copy of them.
    """
    return one_gpu(stored, reference, passing) + stored.gradients


def fsdp_gpu(stored: Stored, reference: int, passing: float, shape: Shape, processes: int) -> float:
    """The same where weights, gradients, moments and reference are divided.

    Whole, for a while: weights of the root and of two layers (the next is fetched early), gradients
    of the root and of one layer; autocast's copies are of gathered weights, so of all of them.
    """
    number = stored.weights // shape.parameters
    gathered = number * (2 * shape.root_parameters + 3 * shape.layer_parameters)
    divided = (stored.kept + reference) / processes
    step = stored.moments / 2 / processes
    return divided + max(passing + gathered + stored.copies, step)
