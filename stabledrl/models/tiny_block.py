"""The tiny model as one that writes block by block, as SDAR does."""

from __future__ import annotations

from typing import Annotated

from annotated_types import Ge, Gt

from stabledrl.declarations import declares
from stabledrl.models.tiny import assemble, character_tokenizer, initialise_backbone, read
from stabledrl.policy import Policy


@declares(block_causal=True)
def initialise(
    hidden_size: Annotated[int, Gt(0)],
    layers: Annotated[int, Gt(0)],
    heads: Annotated[int, Gt(0)],
    feedforward_size: Annotated[int, Gt(0)],
    seed: Annotated[int, Ge(0)],
    block_length: Annotated[int, Gt(0)],
) -> Policy:
    """Random weights, the same as those of the bidirectional `tiny`. ValueError as there."""
    backbone = initialise_backbone(hidden_size, layers, heads, feedforward_size, seed)
    return assemble(backbone, character_tokenizer(), block_length)


@declares(block_causal=True)
def load(path: str, block_length: Annotated[int, Gt(0)]) -> Policy:
    """A folder written by `Policy.save_pretrained`, read with blocks of `block_length` tokens.

    The folder does not say how long: a model may have been trained on several lengths. Raises
    ValueError with the folder's name if it is missing or incomplete.
    """
    return assemble(*read(path), block_length)
