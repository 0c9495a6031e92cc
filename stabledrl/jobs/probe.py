"""job=probe: what an objective will do at its first updates, before any training is spent."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, is_dataclass, replace
from functools import partial
from typing import Annotated, Any, cast

from annotated_types import Ge, Gt
from omegaconf import DictConfig
from rich.console import Console
from rich.markdown import Markdown
from torch import Tensor

from stabledrl.config import build
from stabledrl.declarations import declares, stated
from stabledrl.diagnostics.probe import Noise, leaves_negatives_unbounded, ordered
from stabledrl.diagnostics.probe_page import Findings, page, recommendations
from stabledrl.errors import ConfigurationError
from stabledrl.estimators.exact import Exact
from stabledrl.jobs.policies import build_policy
from stabledrl.jobs.probing import Collected, Probe, Rules
from stabledrl.jobs.record import Record, release
from stabledrl.jobs.train import build_algorithm, phase_settings
from stabledrl.pairing import Draw, Pairs, independent, paired, shared
from stabledrl.training.phases import PhaseCollector

Pairing = Callable[[Draw, int], Pairs]

AFFORDABLE = 12  # counted tokens: 4096 forward passes a completion
UNASKED = 8  # completions enumerated where nobody said how many


@declares(trains_on=None, collects_phases=True)
def probe(
    cfg: DictConfig,
    phases: Annotated[int, Gt(0)],
    repetitions: Annotated[int, Gt(0)],
    draws: Annotated[int, Ge(0)],
    gradient_draws: Annotated[int, Ge(2)],
    exact_completions: Annotated[int, Ge(0)] | None,
    exact_repetitions: Annotated[int, Ge(2)],
    evaluations: Annotated[int, Ge(2)],
    clippings: DictConfig,
    normalizations: DictConfig,
) -> float:
    """Measure at θ = θ_old; returns the predicted bypass rate.

    Tables go to probe.md and the terminal, numbers to summary.json.
    """
    if exact_completions:
        _refuse_long_completions(cfg, exact_completions)
    record = Record(cfg)
    prober = collect_phases(cfg, phases)
    pairings: dict[str, Pairing] = {
        "independent": independent,
        "paired": paired,
        "shared": shared,
        cfg.masking.pairing: prober.algorithm.pairing,  # which may be one's own
    }
    chosen, why_not = enumerable(prober.phases[0].sequences.length, exact_completions)
    groups = cfg.rollout.prompts_per_batch
    value, negative = prober.accuracy(chosen, exact_repetitions) if len(chosen) else (None, None)
    found = Findings(
        estimator=type(prober.algorithm.estimator).__name__,
        pairing=cfg.masking.pairing,
        noise={name: prober.noise(repetitions, pairing=item) for name, item in pairings.items()},
        by_draws=noise_by_draws(prober, draws, repetitions),
        negatives=float((prober.advantage < 0)[prober.verdict].float().mean().nan_to_num()),
        unbounded=leaves_negatives_unbounded(prober.algorithm.clipping),
        spreads=prober.spreads(build_rules(clippings, normalizations), gradient_draws, groups),
        accuracy=value,
        negative_accuracy=negative,
        evaluations=prober.evaluations(evaluations),
        not_enumerated=why_not,
    )
    _tell(record, found)
    return found.configured.bypass_rate


def collect_phases(cfg: DictConfig, phases: int) -> Probe:
    """The first phases of a training run with this configuration, were it to learn nothing."""
    algorithm = build_algorithm(cfg)
    # only the first update is at θ = θ_old, and nothing has drifted
    settings = replace(phase_settings(cfg), inner_updates=1, drift_every=0)
    task = build(cfg.task)
    collector = PhaseCollector(task, build(cfg.sampler), algorithm, settings, cfg.seed)
    policy = build_policy(cfg).train()  # as in training
    collected = []
    for number in range(phases):
        phase = collector(policy, policy, number)
        collected.append(Collected(number, phase.rollout.sequences, phase.reward))
    release(task)
    return Probe(algorithm, policy, collected, cfg.seed, settings.rows)


def build_rules(clippings: DictConfig, normalizations: DictConfig) -> Rules:
    """Every clipping with every normalization."""
    return {
        " + ".join((str(clipping), str(normalization))): (build(node), build(other))
        for clipping, node in clippings.items()
        for normalization, other in normalizations.items()
    }


def enumerable(length: Tensor, requested: int | None) -> tuple[Tensor, str]:
    """Completions to enumerate, and if there are none, why.

    length: counted tokens of every completion. requested: how many; None takes a few short ones.
    """
    longest = AFFORDABLE if requested is None else Exact.longest_completion
    wanted = UNASKED if requested is None else requested
    if wanted == 0:
        return length.new_zeros(0), "job.exact_completions=0"
    chosen = ((length > 0) & (length <= longest)).nonzero().squeeze(-1)[:wanted]
    if len(chosen):
        return chosen, ""
    shortest = int(length.min())
    reason = f"no completion has 1 to {longest} counted tokens (the shortest has {shortest})"
    if requested is None and shortest <= Exact.longest_completion:
        reason += (
            f"; job.exact_completions=1 enumerates one nevertheless, "
            f"2^{shortest} = {2**shortest} forward passes"
        )
    return chosen, reason


def noise_by_draws(prober: Probe, draws: int, repetitions: int) -> dict[int, Noise]:
    """Noise under independent masks for 1…draws mask draws; empty where the estimator has none.

    Or where ratios are those of tokens: an estimator that draws has no values for all of them.
    """
    estimator: Any = prober.algorithm.estimator
    if not is_dataclass(estimator) or not hasattr(estimator, "draws"):
        return {}
    if stated(prober.algorithm.ratio.units, "needs_token_values", False):
        return {}
    estimator_of = partial(replace, cast(Any, estimator))
    fewer = max(1, repetitions // 2)  # each costs as much as all pairings together
    return {
        number: prober.noise(fewer, pairing=independent, estimator=estimator_of(draws=number))
        for number in range(1, draws + 1)
    }


def numbers(found: Findings) -> dict[str, Any]:
    """The findings as summary.json holds them."""
    return {
        "noise": {name: asdict(item) for name, item in found.noise.items()},
        "by_draws": {str(number): asdict(item) for number, item in found.by_draws.items()},
        "negatives": found.negatives,
        "exact": asdict(found.accuracy) if found.accuracy else None,
        "exact_negative_score": asdict(found.negative_accuracy)
        if found.negative_accuracy
        else None,
        "evaluations": asdict(found.evaluations),
        "not_enumerated": found.not_enumerated,
        "gradient": {
            name: {**asdict(item), "relative": item.relative}
            for name, item in found.spreads.items()
        },
        "order": ordered(found.spreads),
        "recommendations": recommendations(found),
    }


def _tell(record: Record, found: Findings) -> None:
    """probe.md, the terminal, summary.json."""
    text = page(found, f"{found.estimator}, masks {found.pairing}")
    (record.directory / "probe.md").write_text(text + "\n")
    Console().print(Markdown(text))
    rows = [
        ("noise at θ_old", f"{found.configured.std:.3g} nats, masks {found.pairing}"),
        (
            "predicted bypass",
            f"{found.configured.bypass_rate:.4f} ± {found.configured.bypass_error:.4f}",
        ),
        ("tables", f"{record.directory}/probe.md"),
    ]
    record.finish(numbers(found), found.configured.bypass_rate, rows=rows)


def _refuse_long_completions(cfg: DictConfig, requested: int) -> None:
    """ConfigurationError where every completion is too long, before a record is opened."""
    length, longest = cfg.task.get("fixed_length"), Exact.longest_completion
    if isinstance(length, int) and length > longest:
        raise ConfigurationError(
            [
                f"job.exact_completions={requested}: completions of task.fixed_length={length} "
                f"tokens cannot be enumerated, at most {longest}; set it to 0"
            ]
        )
