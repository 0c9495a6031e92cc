"""Evaluating an estimator on more samples than fit into memory at once."""

from __future__ import annotations

from stabledrl.types import Corruption, Estimator, Likelihood, Scorer, Sequences


def in_chunks(
    estimator: Estimator, scorer: Scorer, sequences: Sequences, corruption: Corruption, rows: int
) -> Likelihood:
    """The proxy of all samples under a corruption, `rows` samples at a time; memory only."""
    chunks = (slice(at, at + rows) for at in range(0, len(sequences), rows))
    return Likelihood.join([estimator(scorer, sequences[at], corruption[at]) for at in chunks])
