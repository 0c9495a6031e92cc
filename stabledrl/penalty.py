"""The KL term: which divergence estimate, at which level, against which policy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Literal

from annotated_types import Ge
from jaxtyping import Bool, Float
from pydantic import ConfigDict
from pydantic.dataclasses import dataclass
from torch import Tensor

from stabledrl.declarations import declares
from stabledrl.functional.kl import k3
from stabledrl.functional.reduce import masked_mean
from stabledrl.types import Likelihood, Scorer, Sequences

Divergence = Callable[[Tensor], Tensor]
Level = Callable[[Divergence, Likelihood, Likelihood, Sequences], Tensor]


def sequence(
    divergence: Divergence, policy: Likelihood, reference: Likelihood, sequences: Sequences
) -> Float[Tensor, " sample"]:
    """k(δ) of the whole completion, δ = L̂_ref − L̂_θ."""
    return divergence(reference.value - policy.value)


def divided(
    divergence: Divergence, policy: Likelihood, reference: Likelihood, sequences: Sequences
) -> Float[Tensor, " sample"]:
    """k(δ)/L: the sequence's divergence per counted token (ESPO, arXiv 2512.03759)."""
    total = sequence(divergence, policy, reference, sequences)
    return total / sequences.length.clamp(min=1)


@declares(needs_token_values=True)
def token(
    divergence: Divergence, policy: Likelihood, reference: Likelihood, sequences: Sequences
) -> Float[Tensor, " sample"]:
    """Mean of k(δ_k) over counted tokens, for estimators with token values (d1)."""
    if policy.token_value is None or reference.token_value is None:
        raise ValueError("kl.level=token needs an estimator with token values, such as mean_field")
    delta = reference.token_value - policy.token_value
    return masked_mean(divergence(delta), sequences.completion_mask, -1)


@dataclass(frozen=True, config=ConfigDict(extra="forbid", arbitrary_types_allowed=True))
class DivergencePenalty:
    """β·KL: mean over groups of the mean over members with a verdict.

    coefficient: β; 0 evaluates nothing. divergence: k1, k2 or k3. level: sequence, divided, token.
    reference: `frozen` (the policy training started from) or `rollout` (the one that sampled).
    """

    coefficient: Annotated[float, Ge(0)] = 0.0
    divergence: Divergence = k3
    level: Level = divided
    reference: Literal["frozen", "rollout"] = "frozen"

    def judge(self, policy: Scorer, frozen: Scorer | None) -> Scorer | None:
        """The policy to diverge from, or None if the term is off."""
        if self.coefficient == 0:
            return None
        if self.reference == "rollout":
            return policy
        if frozen is None:
            raise ValueError("kl.reference=frozen with a coefficient needs a frozen policy")
        return frozen

    def __call__(
        self,
        policy: Likelihood,
        reference: Likelihood | None,
        sequences: Sequences,
        verdict: Bool[Tensor, "group member"],
    ) -> Float[Tensor, ""]:
        """β·KL with gradient; exactly 0 where there is no reference."""
        if reference is None:
            return policy.score.new_zeros(())
        value = self.level(self.divergence, policy, reference, sequences).view(verdict.shape)
        return self.coefficient * masked_mean(value, verdict, -1).mean()
