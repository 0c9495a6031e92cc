"""A small prepared phase: prompts of several lengths, completions with and without end."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from stabledrl import levels
from stabledrl.algorithm import Algorithm, RatioLevel
from stabledrl.estimators.elbo import Elbo
from stabledrl.functional import advantage, clipping, normalization, ratio
from stabledrl.functional.masking import counted_tokens
from stabledrl.pairing import paired
from stabledrl.penalty import DivergencePenalty
from stabledrl.policy import Policy
from stabledrl.randomness import keyed_generator
from stabledrl.types import Scorer, Sequences
from tests.policies import END, left_padded, tiny_policy

SEQUENCE = RatioLevel(ratio.sequence_log_ratio, ratio.sequence_score)
PER_TOKEN = RatioLevel(ratio.per_token_log_ratio, ratio.per_token_score)
TOKEN = RatioLevel(ratio.token_log_ratio, ratio.token_score, units=levels.tokens)
GROUPS, MEMBERS, LENGTH = 4, 3, 6


def algorithm(**changes: object) -> Algorithm:
    """GRPO on a paired ELBO, with changes."""
    settings: dict[str, object] = {
        "estimator": Elbo(draws=2),
        "pairing": paired,
        "ratio": PER_TOKEN,
        "clipping": clipping.conditional,
        "normalization": normalization.group,
        "advantage": advantage.centered,
        "penalty": DivergencePenalty(),
        "completion_length": LENGTH,
    }
    return Algorithm(**settings | changes)  # type: ignore[arg-type]


def phase_sequences(groups: int = GROUPS, members: int = MEMBERS) -> Sequences:
    """Four prompts of 3 to 7 tokens; every third completion ends early."""
    prompts = [[4 + (7 * i + j) % 20 for j in range(3 + i)] for i in range(groups)]
    ids, mask = left_padded(prompts)
    generator = torch.Generator().manual_seed(0)
    completions = torch.randint(4, 24, (groups * members, LENGTH), generator=generator)
    completions[::3, 2] = END
    return Sequences(
        ids.repeat_interleave(members, 0),
        mask.repeat_interleave(members, 0),
        completions,
        counted_tokens(completions, (END,)),
    )


def phase_reward(groups: int = GROUPS, members: int = MEMBERS) -> Tensor:
    """Rewards in eighths, different within every group."""
    generator = torch.Generator().manual_seed(1)
    return torch.randint(0, 8, (groups, members), generator=generator) / 8


def keyed(label: str) -> torch.Generator:
    """What a phase hands to `prepare`."""
    return keyed_generator("masks", 0, 0, label)


def moved_policy(strength: float) -> Policy:
    """The tiny policy a step away from where it was: every matrix perturbed."""
    policy = tiny_policy()
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for parameter in policy.parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            parameter.mul_(1 + strength * noise)
    return policy


class Counting:
    """Counts the evaluations of a scorer, and the rows of each."""

    def __init__(self, scorer: Scorer) -> None:
        self.scorer = scorer
        self.rows: list[int] = []

    @property
    def calls(self) -> int:
        return len(self.rows)

    def log_likelihood(
        self, sequences: Sequences, mask: Tensor, prompt_mask: Tensor | None = None
    ) -> Tensor:
        self.rows.append(mask[..., 0].numel())
        return self.scorer.log_likelihood(sequences, mask, prompt_mask)


def gradient(policy: Policy, loss: Callable[[], Tensor]) -> Tensor:
    """The gradient of a loss with respect to all weights, as one vector."""
    policy.zero_grad()
    value = loss()
    return torch.cat([g.flatten() for g in torch.autograd.grad(value, list(policy.parameters()))])


def assert_same_direction(ours: Tensor, expected: Tensor) -> None:
    """Equal but for the float32 in which log-ratios are kept, measured by the largest entry."""
    largest = float(expected.abs().max())
    assert largest > 1e-3
    torch.testing.assert_close(ours, expected, rtol=0, atol=5e-6 * largest)
