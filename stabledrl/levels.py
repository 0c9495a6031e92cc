"""What a ratio is taken of: whole completions, or each of their tokens.

A level is a function `(likelihood, sequences) -> Units`; your own with this signature will do as
well.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from stabledrl.declarations import declares
from stabledrl.types import Likelihood, Sequences


@dataclass(frozen=True)
class Units:
    """The values and scores of all units, samples first, and which of the units count.

    counted: [sample, 1] for whole completions, whose values have no unit axis.
    """

    value: Float[Tensor, "*sample_and_unit"]
    score: Float[Tensor, "*sample_and_unit"]
    counted: Bool[Tensor, "*sample_and_units"]

    def grouped(self, group_size: int) -> Units:
        """The samples of one prompt on an axis of their own: [group, member, …]."""
        shape = (-1, group_size)
        return Units(
            self.value.unflatten(0, shape),
            self.score.unflatten(0, shape),
            self.counted.unflatten(0, shape),
        )


def completions(likelihood: Likelihood, sequences: Sequences) -> Units:
    """One unit per sample, all of which count."""
    counted = torch.ones_like(sequences.completion_mask[:, :1])
    return Units(likelihood.value, likelihood.score, counted)


@declares(needs_token_values=True)
def tokens(likelihood: Likelihood, sequences: Sequences) -> Units:
    """One unit per completion position; those up to the end token count.

    ValueError for an estimator without token values.
    """
    token_value = likelihood.token_value
    if token_value is None:
        raise ValueError("ratio=token needs an estimator with token values, such as mean_field")
    return Units(token_value, token_value, sequences.completion_mask)
