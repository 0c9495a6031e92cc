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
from stabledrl.functional.reduce import masked_mean, masked_sum
from stabledrl.types import Likelihood, Scorer, Sequences

Divergence = Callable[[Tensor], Tensor]
Level = Callable[[Divergence, Likelihood, Likelihood, Sequences, Tensor], Tensor]


def sequence(
    divergence: Divergence,
    policy: Likelihood,
    reference: Likelihood,
    sequences: Sequences,
    verdict: Bool[Tensor, "group member"],
) -> Float[Tensor, ""]:
    """Mean of k(δ) of whole completions, δ = L̂_ref − L̂_θ."""
    return mean_of_groups(divergence(reference.value - policy.value), verdict)


def divided(
    divergence: Divergence,
    policy: Likelihood,
    reference: Likelihood,
    sequences: Sequences,
    verdict: Bool[Tensor, "group member"],
) -> Float[Tensor, ""]:
    """Mean of k(δ)/L: the completion's divergence per counted token (ESPO, arXiv 2512.03759)."""
    value = divergence(reference.value - policy.value) / sequences.length.clamp(min=1)
    return mean_of_groups(value, verdict)


def per_token(
    divergence: Divergence,
    policy: Likelihood,
    reference: Likelihood,
    sequences: Sequences,
    verdict: Bool[Tensor, "group member"],
) -> Float[Tensor, ""]:
    """Mean of k(δ/L): δ per token as in ratio=per_token (UniGRPO, arXiv 2505.15809)."""
    delta = (reference.value - policy.value) / sequences.length.clamp(min=1)
    return mean_of_groups(divergence(delta), verdict)


@declares(needs_token_values=True)
def token(
    divergence: Divergence,
    policy: Likelihood,
    reference: Likelihood,
    sequences: Sequences,
    verdict: Bool[Tensor, "group member"],
) -> Float[Tensor, ""]:
    """Mean of k(δ_k) over the counted tokens of a completion, then over completions (GRPO)."""
    value = divergence(token_delta(policy, reference))
    return mean_of_groups(masked_mean(value, sequences.completion_mask, -1), verdict)


@declares(needs_token_values=True)
def fixed_length(
    divergence: Divergence,
    policy: Likelihood,
    reference: Likelihood,
    sequences: Sequences,
    verdict: Bool[Tensor, "group member"],
) -> Float[Tensor, ""]:
    """Mean of Σ_k k(δ_k)/R over completions, R the length they are sampled with (TraceRL)."""
    value = divergence(token_delta(policy, reference))
    total = masked_sum(value, sequences.completion_mask, -1)
    return mean_of_groups(total / value.shape[-1], verdict)


@declares(needs_token_values=True, needs_whole_step=True)
def pooled(
    divergence: Divergence,
    policy: Likelihood,
    reference: Likelihood,
    sequences: Sequences,
    verdict: Bool[Tensor, "group member"],
) -> Float[Tensor, ""]:
    """Mean of k(δ_k) over all counted tokens of the step (d1, arXiv 2504.12216; DiffuCoder)."""
    value = divergence(token_delta(policy, reference))
    return masked_mean(value, sequences.completion_mask & verdict.view(-1, 1))


def token_delta(
    policy: Likelihood, reference: Likelihood
) -> Float[Tensor, "sample completion_position"]:
    """δ_k = L̂_ref,k − L̂_θ,k; ValueError for an estimator without token values."""
    if policy.token_value is None or reference.token_value is None:
        raise ValueError(
            "kl.level=token, fixed_length and pooled need an estimator with token values, "
            "such as mean_field"
        )
    return reference.token_value - policy.token_value


def mean_of_groups(
    value: Float[Tensor, " sample"], verdict: Bool[Tensor, "group member"]
) -> Float[Tensor, ""]:
    """Mean over groups of the mean over members with a verdict; 0 for a group without any."""
    return masked_mean(value.view(verdict.shape), verdict, -1).mean()


@dataclass(frozen=True, config=ConfigDict(extra="forbid", arbitrary_types_allowed=True))
class DivergencePenalty:
    """β·KL, averaged as the level says over what has a verdict.

    coefficient: β; 0 evaluates nothing. divergence: k1, k2 or k3. level: sequence, divided,
    per_token, token, fixed_length, pooled.
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
        value = self.level(self.divergence, policy, reference, sequences, verdict)
        return self.coefficient * value
