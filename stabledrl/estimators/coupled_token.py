"""Token values from a mask and its complement: DiffuCoder's coupled-GRPO (arXiv 2506.20639)."""

from __future__ import annotations

from typing import Annotated

import torch
from annotated_types import Gt, Lt
from jaxtyping import Bool
from pydantic import ConfigDict
from pydantic.dataclasses import dataclass
from torch import Tensor

from stabledrl.declarations import declares
from stabledrl.estimators.draws import weighted_token_likelihood
from stabledrl.functional.strata import both_sides
from stabledrl.types import Corruption, Likelihood, Scorer, Sequences

Rate = Annotated[float, Gt(0), Lt(1)]


@declares(token_values=True)
@dataclass(frozen=True, config=ConfigDict(extra="forbid"))
class CoupledToken:
    """Token value ½·(log p_k with all hidden + w·log p_k on k's own side), L̂ their sum. In nats.

    Each token is hidden with probability t in one input, and in the other if it is not; its own
    side is the input that hides it, and w is one over the chance of that: 1/t or 1/(1−t). As
    published, a value is then 3/2 of a log-probability in the mean, not one: a proxy, no estimate
    of J.

    lowest_rate, highest_rate: t is uniform between them; one t for all samples of an evaluation.
    """

    lowest_rate: Rate = 0.2
    highest_rate: Rate = 0.8

    def __post_init__(self) -> None:
        if self.lowest_rate > self.highest_rate:
            raise ValueError(
                f"estimator.lowest_rate={self.lowest_rate} is above "
                f"estimator.highest_rate={self.highest_rate}"
            )

    def draw(self, sequences: Sequences, group_size: int, generator: torch.Generator) -> Corruption:
        """Three masks: everything, a random part, its complement."""
        counted = sequences.completion_mask
        spread = self.highest_rate - self.lowest_rate
        rate = self.lowest_rate + spread * float(torch.rand((), generator=generator))
        noise = torch.rand(counted.shape, generator=generator).to(counted.device)
        return three_inputs(noise < rate, counted, rate)

    def __call__(self, policy: Scorer, sequences: Sequences, corruption: Corruption) -> Likelihood:
        """One forward pass over up to 3·S rows."""
        return weighted_token_likelihood(policy, sequences, corruption)


def three_inputs(
    hidden: Bool[Tensor, "sample position"], counted: Bool[Tensor, "sample position"], rate: float
) -> Corruption:
    """Everything hidden with weight ½, `hidden` with ½/t and the complement with ½/(1−t)."""
    scored = torch.cat([counted[None], both_sides(hidden[None], counted)])
    weight = torch.tensor([0.5, 0.5 / rate, 0.5 / (1 - rate)], device=counted.device)
    return Corruption(scored | ~counted, scored * weight[:, None, None])
