"""Evaluating an estimator on more samples than fit into memory at once."""

from __future__ import annotations

from collections.abc import Callable

from torch.utils.checkpoint import checkpoint

from stabledrl.types import Corruption, Likelihood, Scorer, Sequences

Score = Callable[[Scorer, Sequences, Corruption], Likelihood]


def in_chunks(
    estimator: Score, scorer: Scorer, sequences: Sequences, corruption: Corruption, rows: int
) -> Likelihood:
    """The proxy of all samples under a corruption, `rows` samples at a time; memory only."""
    chunks = (slice(at, at + rows) for at in range(0, len(sequences), rows))
    return Likelihood.join([estimator(scorer, sequences[at], corruption[at]) for at in chunks])


def recomputed_in_chunks(
    estimator: Score, scorer: Scorer, sequences: Sequences, corruption: Corruption, rows: int
) -> Likelihood:
    """As `in_chunks`, with the activations of at most `rows` samples held for the gradient.

    First come the values of all samples, by passes that keep nothing; the backward pass computes
    one chunk after the other again, on the same masks. A group too large for memory is thus split
    exactly, whatever its loss couples, at the price of one more forward pass. One chunk is
    computed once.
    """
    if rows >= len(sequences):
        return estimator(scorer, sequences, corruption)

    def forgotten(scorer: Scorer, sequences: Sequences, corruption: Corruption) -> Likelihood:
        found: Likelihood = checkpoint(
            estimator, scorer, sequences, corruption, use_reentrant=False
        )
        return found

    return in_chunks(forgotten, scorer, sequences, corruption, rows)
