"""The objective, assembled: estimator -> log-ratio -> clipping -> normalization -> weighted score.

No state and no branching on names: every switch is a function that was handed in.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Annotated

import torch
from annotated_types import Ge
from jaxtyping import Bool, Float
from torch import Tensor

from stabledrl.declarations import stated
from stabledrl.estimators.chunks import in_chunks, recomputed_in_chunks
from stabledrl.functional import group_filter as group_filters
from stabledrl.functional.objective import (
    bypass_rate,
    clip_fractions,
    effective_sample_size,
    policy_loss,
)
from stabledrl.functional.ratio import clamped_count, guarded_exp
from stabledrl.functional.reduce import masked_mean
from stabledrl.levels import Units, completions
from stabledrl.pairing import Pairs
from stabledrl.penalty import DivergencePenalty
from stabledrl.share import WHOLE, Share
from stabledrl.types import Batch, Corruption, Estimator, Likelihood, LossOutput, Scorer, Sequences

BYPASS_EPSILON = 0.2  # PPO's ε: the bypass is measured against it whatever clipping is in use


@dataclass(frozen=True)
class RatioLevel:
    """Of what the ratio is taken: functions of the units' likelihoods and of lengths.

    log_ratio: (value, old value, length) -> d [group, member, unit], detached float32.
    score: (score, length) -> ℓ [group, member, unit], with gradient.
    noise_std: σ ≥ 0 of noise that is added to every unit's log-ratio, d_i += σ·N(0, 1): a stress
    test, with masks that are `paired` and so bring no noise of their own (nats; 0 is off).
    units: what values and scores are those of: `levels.completions` [group, member], or
    `levels.tokens` [group, member, position].
    """

    log_ratio: Callable[[Tensor, Tensor, Tensor], Tensor]
    score: Callable[[Tensor, Tensor], Tensor]
    noise_std: Annotated[float, Ge(0)] = 0.0
    units: Callable[[Likelihood, Sequences], Units] = completions

    def difference(
        self, new: Likelihood, old: Likelihood, sequences: Sequences, group_size: int
    ) -> tuple[Float[Tensor, "group member unit"], Bool[Tensor, "group member unit"]]:
        """Log-ratios of all units, and which of them count."""
        above, below = (self.units(it, sequences).grouped(group_size) for it in (new, old))
        length = sequences.length.view(-1, group_size)
        return self.log_ratio(above.value, below.value, length), above.counted

    def gradient_carrier(
        self, likelihood: Likelihood, sequences: Sequences, group_size: int
    ) -> Float[Tensor, "group member unit"]:
        """Scores ℓ of all units."""
        units = self.units(likelihood, sequences).grouped(group_size)
        return self.score(units.score, sequences.length.view(-1, group_size))


@dataclass(frozen=True)
class Algorithm:
    """loss(policy, batch) = −(1/N) Σ_groups Σ_i c_i·A_i·ℓ_i + β·KL, and what explains it.

    Method: StableDRL (arXiv 2603.06743) and everything between it and GRPO.

    estimator: how a likelihood proxy is drawn. pairing: which draws old and new policy share.
    ratio: sequence, per token or every token. clipping: (d, A) -> log weight, keep flag.
    normalization: (log weight, mask, length, R) -> w/Z. advantage: rewards -> advantages.
    penalty: the KL term. completion_length: R, tokens of a completion as sampled.
    group_filter: (reward, solved) -> groups that are kept; whoever has the rewards of a phase asks
    it, and hands `prepare` NaN for groups it drops. N counts the groups that have a verdict.
    """

    estimator: Estimator
    pairing: Callable[[Callable[[str], Corruption], int], Pairs]
    ratio: RatioLevel
    clipping: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
    normalization: Callable[[Tensor, Tensor, Tensor, int], Tensor]
    advantage: Callable[[Tensor], Tensor]
    penalty: DivergencePenalty
    completion_length: int
    group_filter: Callable[[Tensor, Tensor], Tensor] = group_filters.none

    @torch.no_grad()
    def prepare(
        self,
        policy: Scorer,
        reference: Scorer | None,
        sequences: Sequences,
        reward: Float[Tensor, "group member"],
        updates: int,
        rows: int,
        generator: Callable[[str], torch.Generator],
        share: Share = WHOLE,
    ) -> list[Batch]:
        """One whole-phase batch per inner update, everything random and everything old in it.

        policy is the one that sampled. rows: samples scored together; with those of a training
        batch, shared masks give ρ = 1 to the last bit. generator(label) is keyed by seed and phase.
        reward: NaN where there is no verdict, as in all of a group that was filtered.
        Each distinct old corruption costs one evaluation: 1 under `independent` and `shared`, μ
        under `paired`.
        share: whose groups the batches hold, and are scored; what is random is drawn for all.
        """
        group_size, verdict = reward.shape[1], ~reward.isnan()
        groups, samples = share.groups(len(reward)), share.samples(*reward.shape)
        own = sequences[samples]
        counted = float(verdict.any(-1).float().mean())
        judge = self.penalty.judge(policy, reference)
        drawn: dict[str, Corruption] = {}
        scored: dict[tuple[int, int], Likelihood] = {}

        def draw(label: str) -> Corruption:
            if label not in drawn:
                whole = self.estimator.draw(sequences, group_size, generator(label))
                drawn[label] = whole[samples]
            return drawn[label]

        def score(scorer: Scorer, corruption: Corruption) -> Likelihood:
            key = (id(scorer), id(corruption))
            if key not in scored:
                scored[key] = self.likelihood(scorer, own, corruption, rows)
            return scored[key]

        return [
            Batch(
                sequences=own,
                corruption=new,
                group_size=group_size,
                advantage=self.advantage(reward)[groups],
                verdict=verdict[groups],
                old=score(policy, old),
                reference=None if judge is None else score(judge, new),
                log_ratio_noise=self._noise(
                    self.ratio.units(score(policy, old), own).grouped(group_size),
                    generator(f"noise {update}"),
                    len(reward),
                    groups,
                ),
                counted_share=counted or 1.0,  # of nothing there is no mean
            )
            for update, (old, new) in enumerate(self.pairing(draw, updates))
        ]

    def _noise(
        self, units: Units, generator: torch.Generator, count: int, groups: slice | Tensor
    ) -> Tensor | None:
        """σ·N(0, 1) for every unit of one update, drawn in sample order; None without noise.

        count: groups that it is drawn for. groups: those whose units these are.
        """
        if self.ratio.noise_std == 0:
            return None
        noise = torch.randn((count, *units.counted.shape[1:]), generator=generator)[groups]
        return self.ratio.noise_std * noise.to(units.counted.device)

    @torch.no_grad()
    def drift(
        self,
        policy: Scorer,
        reference: Scorer,
        sequences: Sequences,
        group_size: int,
        rows: int,
        generator: torch.Generator,
        share: Share = WHOLE,
    ) -> Float[Tensor, ""]:
        """Mean of (L̂_policy − L̂_reference)/|y| in nats per token, on the policy's own samples.

        An estimate of KL(policy ‖ reference), k1 of `functional.kl`; both on the same masks, whose
        noise then cancels. Two evaluations of all samples, shared out.
        """
        count = len(sequences) // group_size
        samples = share.samples(count, group_size)
        corruption = self.estimator.draw(sequences, group_size, generator)[samples]
        own = sequences[samples]
        new, old = (self.likelihood(it, own, corruption, rows) for it in (policy, reference))
        value = (new.value - old.value).float() / own.length.clamp(min=1)
        return share.whole(value, count).mean()

    @torch.no_grad()
    def likelihood(
        self, scorer: Scorer, sequences: Sequences, corruption: Corruption, rows: int
    ) -> Likelihood:
        """The proxy of all samples under a corruption, `rows` samples at a time."""
        return in_chunks(self.estimator, scorer, sequences, corruption, rows)

    def loss(self, policy: Scorer, batch: Batch, rows: int | None = None) -> LossOutput:
        """The loss of whole groups and its metrics, detached (names as in docs/metrics.md).

        rows: samples whose activations are held at a time, None for all; memory only.
        """
        sequences, size = batch.sequences, batch.group_size
        likelihood = recomputed_in_chunks(
            self.estimator, policy, sequences, batch.corruption, rows or len(sequences)
        )
        length = sequences.length.view(-1, size)
        log_ratio, counted = self.ratio.difference(likelihood, batch.old, sequences, size)
        if batch.log_ratio_noise is not None:
            log_ratio = log_ratio + batch.log_ratio_noise
        carrier = score_by_sign(likelihood, batch.advantage)
        score = self.ratio.gradient_carrier(carrier, sequences, size)
        mask = counted & batch.verdict[..., None]
        log_weight, keep = self.clipping(log_ratio, batch.advantage)
        weight = self.normalization(log_weight, mask, length, self.completion_length)
        surrogate = policy_loss(score, batch.advantage, torch.where(keep, weight, 0))
        surrogate = surrogate / counted_share(self.normalization, batch)
        divergence = self.penalty(likelihood, batch.reference, sequences, batch.verdict)
        divergence = divergence / counted_share(self.penalty.level, batch)
        loss = surrogate + divergence
        metrics = {
            "train/loss": loss.detach(),
            "train/kl": divergence.detach(),
            "guard/clamped_ratios": self._clamped(log_weight, mask),
            **ratio_metrics(log_ratio, mask),
            **weight_metrics(log_ratio, log_weight, keep, mask, batch.advantage),
            "train/weights/max": weight.max(),
            "train/weights/sum": masked_mean(weight.sum((1, 2)), mask.any(-1).any(-1)),
        }
        return LossOutput(loss, metrics)

    def _clamped(self, log_weight: Tensor, mask: Tensor) -> Tensor:
        """Number of weights whose exponent the normalization clamps; 0 if it works in log space."""
        if stated(self.normalization, "clamps_exponent", True):
            return clamped_count(log_weight, mask)
        return log_weight.new_zeros(())


def counted_share(average: object, batch: Batch) -> float:
    """What a mean over all groups is divided by to be one over those with a verdict.

    1 for a function that averages over the whole step, which looks at nothing else.
    """
    return 1.0 if stated(average, "needs_whole_step", False) else batch.counted_share


def score_by_sign(likelihood: Likelihood, advantage: Float[Tensor, "group member"]) -> Likelihood:
    """Its score, where the advantage is not positive the one for that case, if there is one."""
    if likelihood.negative_score is None:
        return likelihood
    score = torch.where(advantage.flatten() > 0, likelihood.score, likelihood.negative_score)
    return replace(likelihood, score=score)


def ratio_metrics(log_ratio: Tensor, mask: Tensor) -> dict[str, Tensor]:
    """How far the estimated ratios are from 1: moments of ρ and of log ρ over counted entries."""
    center = masked_mean(log_ratio, mask)
    spread = masked_mean((log_ratio - center).square(), mask).sqrt()
    largest = torch.where(mask, log_ratio, -torch.inf).max()
    largest = torch.where(mask.any(), largest, 0)  # nobody counts: no ratio has moved
    return {
        "train/ratio/mean": masked_mean(guarded_exp(log_ratio), mask),
        "train/ratio/max": guarded_exp(largest),
        "train/ratio/log_std": spread,
        "train/ratio/log_max": largest,
        "train/drift/old": -center,  # E_old[log π_old − log π_θ] is their divergence
    }


def weight_metrics(
    log_ratio: Tensor, log_weight: Tensor, keep: Tensor, mask: Tensor, advantage: Tensor
) -> dict[str, Tensor]:
    """What clipping made of the ratios: effective sample size, clipped shares, the bypass."""
    low, high = clip_fractions(log_ratio, log_weight, keep, mask)
    share = effective_sample_size(log_weight, mask)
    return {
        # nobody counts: no sample decides
        "train/ess": torch.where(mask.any(), masked_mean(share, mask.any(-1).any(-1)), 1),
        "train/clip_ratio/low_mean": low,
        "train/clip_ratio/high_mean": high,
        "train/clip_ratio/region_mean": low + high,
        "train/bypass_rate": bypass_rate(log_ratio, advantage, BYPASS_EPSILON, mask),
    }
