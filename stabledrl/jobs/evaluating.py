"""The settings that job=evaluate goes through, and the numbers of one."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from omegaconf import DictConfig, OmegaConf

from stabledrl.config import build
from stabledrl.errors import ConfigurationError, UserError
from stabledrl.functional.evaluation import mean_interval, pass_at_k, wilson_interval
from stabledrl.rollout import Rollout
from stabledrl.samplers.sampler import Sampler

Numbers = Mapping[str, Any]
Measure = Callable[[Rollout, Sequence[int]], Numbers]


@dataclass(frozen=True)
class Setting:
    """A decoder: completion tokens, forward passes, and the sampler that has them."""

    length: int
    steps: int
    sampler: Sampler

    @property
    def name(self) -> str:
        """Beginning of the names of its files."""
        return f"length_{self.length}_steps_{self.steps}"

    def decodings(self, samples: int) -> Iterator[tuple[str, Sampler, int, Measure]]:
        """Name, decoder, completions per prompt, what they show; greedy, then sampled."""
        yield "greedy", self.sampler.greedy(), 1, solve_rate
        if samples:
            yield "sampled", self.sampler, samples, passes


def settings_of(
    cfg: DictConfig, lengths: Sequence[int] | None, steps: Sequence[int] | None
) -> list[Setting]:
    """Every length with every number of steps, in the order given.

    ConfigurationError that names all that do not fit. What refers to the sampler's length, as the
    block of sampler=dream, follows it.
    """
    found: list[Setting] = []
    faults: list[str] = []
    needed = cfg.task.get("fixed_length")
    for length, count in itertools.product(
        dict.fromkeys(lengths or [cfg.sampler.length]),
        dict.fromkeys(steps or [cfg.sampler.steps]),
    ):
        given = {"job.lengths": lengths and length, "job.steps": steps and count}
        name = " with ".join(f"{key}={value}" for key, value in given.items() if value)
        if lengths and isinstance(needed, int) and length < needed:
            faults.append(f"{name} is too short: task.fixed_length={needed} tokens are needed")
            continue
        chosen = OmegaConf.merge(cfg, {"sampler": {"length": length, "steps": count}})
        try:
            found.append(Setting(length, count, build(chosen.sampler)))
        except UserError as error:
            faults.append(f"{name}: {str(error).removeprefix(f'{cfg.sampler._target_}: ')}")
    if faults:
        raise ConfigurationError(faults)
    return found


def several_k(k: Sequence[int] | None, samples: int) -> list[int]:
    """The k of pass@k: 1, 2, 4, … and `samples` unless given, ascending.

    ConfigurationError that names each one above the number of samples.
    """
    if k is None:
        powers = itertools.takewhile(lambda power: power < samples, (2**i for i in range(64)))
        return [*powers, samples] if samples else []
    faults = [
        f"job.k={one} is more than job.samples={samples}: raise job.samples to {max(k)}"
        for one in k
        if one > samples
    ]
    if faults:
        raise ConfigurationError(faults)
    return sorted(set(k))


def solve_rate(rollout: Rollout, several: Sequence[int]) -> Numbers:
    """Of one completion per prompt, with Wilson's interval."""
    rate = float(rollout.solved.double().mean())
    return {"solved": rate, "solved_95": list(wilson_interval(rate, len(rollout.prompts)))}


def passes(rollout: Rollout, several: Sequence[int]) -> Numbers:
    """pass@k with its interval, for each k."""
    numbers: dict[str, Any] = {}
    for k in several:
        chance = pass_at_k(rollout.solved > 0, k)
        numbers[f"pass_at_{k}"] = float(chance.mean())
        numbers[f"pass_at_{k}_95"] = list(mean_interval(chance, rollout.group_size))
    return numbers


def common(rollout: Rollout) -> Numbers:
    """What any completions show; one without verdict has no reward, and counts as unsolved."""
    return {
        "reward": float(rollout.reward.nanmean()),
        "no_verdict": int(rollout.reward.isnan().sum()),
        "mean_length": float(rollout.sequences.length.float().mean()),
        "forwards": rollout.completions.forwards,
        "seconds": rollout.sampling_s + rollout.grading_s,
    }
