"""The probe's measurements: an algorithm and a policy on collected phases, nothing trained."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from time import perf_counter

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from stabledrl.algorithm import BYPASS_EPSILON, Algorithm
from stabledrl.diagnostics.probe import (
    Accuracy,
    Evaluations,
    Noise,
    Spread,
    accuracy,
    gradient_norm,
    group_spread,
    noise,
)
from stabledrl.diagnostics.probe import spread as spread_of
from stabledrl.estimators.chunks import recomputed_in_chunks
from stabledrl.estimators.exact import Exact
from stabledrl.estimators.mean_field import MeanField
from stabledrl.penalty import DivergencePenalty
from stabledrl.policy import Policy
from stabledrl.randomness import keyed_generator
from stabledrl.types import Batch, Corruption, Likelihood, Scorer, Sequences

Rules = Mapping[str, tuple[Callable[..., tuple[Tensor, Tensor]], Callable[..., Tensor]]]


@dataclass(frozen=True)
class Collected:
    """Phase `number`: its completions and rewards [group, member], NaN where there is no verdict
    or the group was filtered."""

    number: int
    sequences: Sequences
    reward: Float[Tensor, "group member"]


@dataclass(frozen=True)
class Probe:
    """Measures an algorithm at θ = θ_old.

    phases: what the policy sampled. seed: that of the run. rows: samples scored together, those of
    a training batch.
    """

    algorithm: Algorithm
    policy: Policy
    phases: Sequence[Collected]
    seed: int
    rows: int

    def prepared(self, algorithm: Algorithm, phase: Collected, repetition: int) -> Batch:
        """The batch of the first inner update; repetition 0 has the masks that training draws."""
        again = (repetition,) if repetition else ()
        [batch] = algorithm.prepare(
            self.policy,
            self.policy,  # before any training the reference is the policy
            phase.sequences,
            phase.reward,
            1,
            self.rows,
            lambda label: keyed_generator("masks", self.seed, phase.number, label, *again),
        )
        return batch

    def log_ratio(
        self, algorithm: Algorithm, phase: Collected, repetition: int
    ) -> tuple[Float[Tensor, "group member unit"], Bool[Tensor, "group member unit"]]:
        """d of the first inner update, at the algorithm's ratio level, and which entries count."""
        batch = self.prepared(algorithm, phase, repetition)
        new = algorithm.likelihood(self.policy, batch.sequences, batch.corruption, self.rows)
        log_ratio, counted = algorithm.ratio.difference(
            new, batch.old, batch.sequences, batch.group_size
        )
        return log_ratio, counted & batch.verdict[..., None]

    @property
    def advantage(self) -> Float[Tensor, "group member"]:
        """Advantages of all phases."""
        return torch.cat([self.algorithm.advantage(phase.reward) for phase in self.phases])

    @property
    def verdict(self) -> Tensor:
        """Where there is a verdict, in all phases."""
        return torch.cat([~phase.reward.isnan() for phase in self.phases])

    def noise(self, repetitions: int, **changes: object) -> Noise:
        """Noise and predicted bypass rate; changes are those of the algorithm."""
        # the penalty has no part in a log-ratio
        algorithm: Algorithm = replace(self.algorithm, penalty=DivergencePenalty(), **changes)  # type: ignore[arg-type]
        drawn = [
            [self.log_ratio(algorithm, phase, repetition) for phase in self.phases]
            for repetition in range(repetitions)
        ]
        log_ratio = torch.stack([torch.cat([d for d, _ in phases]) for phases in drawn])
        counted = torch.cat([mask for _, mask in drawn[0]])  # the same in every repetition
        return noise(log_ratio, self.advantage, counted, BYPASS_EPSILON)

    def spreads(self, rules: Rules, draws: int, groups: int) -> dict[str, Spread]:
        """Norm of the loss's gradient on the first groups of a phase, by rule.

        The draws go round the phases, so that the spread is over prompts as over masks: that of the
        first updates of a run. The rules see the same draws and share one forward pass per draw;
        each has its own backward.
        """
        parameters = [item for item in self.policy.parameters() if item.requires_grad]
        norms: dict[str, list[float]] = {name: [] for name in rules}
        for draw in range(draws):
            repetition, number = divmod(draw, len(self.phases))
            phase = self.phases[number]
            batch = self.prepared(self.algorithm, phase, repetition).groups(0, groups)
            scored = Scored(
                recomputed_in_chunks(
                    self.algorithm.estimator,
                    self.policy,
                    batch.sequences,
                    batch.corruption,
                    self.rows,
                )
            )
            for name, (clipping, normalization) in rules.items():
                algorithm = replace(
                    self.algorithm,
                    estimator=scored,
                    clipping=clipping,
                    normalization=normalization,
                )
                loss = algorithm.loss(self.policy, batch).loss
                norms[name].append(gradient_norm(loss, parameters))
        return {name: spread_of(torch.tensor(values)) for name, values in norms.items()}

    def accuracy(self, completions: Tensor, repetitions: int) -> tuple[Accuracy, Accuracy | None]:
        """The estimator against the order-averaged ELBO on chosen samples of the first phase.

        Of its value and, where it has one, of the score that serves A ≤ 0 (`negative_score`).
        """
        sequences, count = self.phases[0].sequences[completions], len(completions)
        exact = Exact()
        generator = keyed_generator("probe", self.seed, "exact")
        with torch.no_grad():
            truth = exact(self.policy, sequences, exact.draw(sequences, count, generator)).value
        # all repetitions as one long batch, in groups of one: no strata tie samples to each other
        many = sequences[torch.arange(count).repeat(repetitions)]
        corruption = self.algorithm.estimator.draw(many, 1, generator)
        found = self.algorithm.likelihood(self.policy, many, corruption, self.rows)
        negative = found.negative_score
        return (
            accuracy(found.value.view(repetitions, count), truth),
            None if negative is None else accuracy(negative.view(repetitions, count), truth),
        )

    def evaluations(self, repetitions: int) -> Evaluations:
        """The estimator on the first phase, R ≥ 2 times, in the groups of training.

        Each time one forward pass of every completion is timed beside it: whatever else the
        machine does slows both.
        """
        phase, counting = self.phases[0], Counting(self.policy)
        single = replace(self.algorithm, estimator=MeanField(prompt_mask_probability=0.0))
        self._timed(single, self.policy, phase, 0)  # the first pass of all pays for warming up
        values, times = [], []
        for repetition in range(repetitions):
            value, seconds = self._timed(self.algorithm, counting, phase, repetition)
            _, unit = self._timed(single, self.policy, phase, repetition)
            values.append(value.view(phase.reward.shape))
            times.append(seconds / unit)
        std, group_std = group_spread(torch.stack(values))
        evaluated = repetitions * len(phase.sequences)
        return Evaluations(
            completions=len(phase.sequences),
            repetitions=repetitions,
            std=std,
            group_std=group_std,
            forwards=counting.rows / evaluated,
            time=statistics.median(times),
        )

    def _timed(
        self, algorithm: Algorithm, scorer: Scorer, phase: Collected, repetition: int
    ) -> tuple[Float[Tensor, " sample"], float]:
        """Values of one evaluation and the seconds their scoring took, the drawing left out."""
        generator = keyed_generator("probe", self.seed, "evaluations", repetition)
        size = phase.reward.shape[1]
        corruption = algorithm.estimator.draw(phase.sequences, size, generator)
        start = perf_counter()
        value = algorithm.likelihood(scorer, phase.sequences, corruption, self.rows).value.cpu()
        return value, perf_counter() - start


@dataclass
class Counting:
    """A scorer that counts the forward passes of a completion it is asked for, one a row."""

    scorer: Scorer
    rows: int = 0

    def log_likelihood(
        self, sequences: Sequences, mask: Tensor, prompt_mask: Tensor | None = None
    ) -> Float[Tensor, "*draw sample completion_position"]:
        """The scorer's answer."""
        self.rows += int((mask & sequences.completion_mask).any(-1).sum())
        return self.scorer.log_likelihood(sequences, mask, prompt_mask)


@dataclass(frozen=True)
class Scored:
    """An estimator that has answered already: several losses share its forward pass."""

    likelihood: Likelihood

    def draw(self, sequences: Sequences, group_size: int, generator: torch.Generator) -> Corruption:
        """Never asked for."""
        raise NotImplementedError("the corruption has been drawn")

    def __call__(self, policy: Scorer, sequences: Sequences, corruption: Corruption) -> Likelihood:
        """The answer."""
        return self.likelihood
