"""The probe's findings in words and tables: simple rules, stated with their numbers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from stabledrl.diagnostics.probe import Accuracy, Evaluations, Noise, Spread, ordered

NOISE_LIMIT = 0.5  # nats; docs/metrics.md, train/ratio/noise_std
BYPASS_LIMIT = 0.02  # share of counted entries
SPREAD_LIMIT = 3.0  # largest norm over median: what a gradient spike looks like
ENTRIES = 500  # log-ratios for a prediction worth checking


@dataclass(frozen=True)
class Findings:
    """What was measured.

    pairing: the configured one, a key of `noise`. by_draws: noise under independent masks by number
    of mask draws, empty for an estimator without any. negatives: share of counted completions with
    A < 0. unbounded: the configured clipping leaves negatives unbounded. spreads: by rule.
    accuracy: None where nothing was enumerated, and `not_enumerated` says why. negative_accuracy:
    that of the score for A ≤ 0, None where one score serves both. evaluations: of the estimator on
    whole groups.
    """

    estimator: str
    pairing: str
    noise: Mapping[str, Noise]
    by_draws: Mapping[int, Noise]
    negatives: float
    unbounded: bool
    spreads: Mapping[str, Spread]
    accuracy: Accuracy | None
    negative_accuracy: Accuracy | None
    evaluations: Evaluations
    not_enumerated: str

    @property
    def configured(self) -> Noise:
        """The noise of the configured pairing."""
        return self.noise[self.pairing]


def recommendations(found: Findings) -> list[str]:
    """One or two sentences per rule; predictions from θ = θ_old, not facts about a run."""
    return [
        *_on_noise(found),
        *_on_bypass(found),
        *_on_spread(found),
        *_on_accuracy(found),
    ]


def _on_noise(found: Findings) -> Iterator[str]:
    std, quiet = found.configured.std, [n for n, item in found.noise.items() if item.std == 0]
    if std <= NOISE_LIMIT:
        yield f"Noise {std:.3g} nats (masks {found.pairing}): not above {NOISE_LIMIT}."
        return
    # measured noise is itself noisy: a number of draws is enough if no larger one is above
    most = max((n for n, item in found.by_draws.items() if item.std > NOISE_LIMIT), default=0)
    enough = [draws for draws in found.by_draws if draws > most]
    ways = [f"masking.pairing={name}, which leaves none at θ_old" for name in quiet[:1]]
    ways += [f"estimator.draws={min(enough)}, which falls under the limit"] if enough else []
    yield (
        f"Noise {std:.3g} nats (masks {found.pairing}) is above {NOISE_LIMIT}: take "
        + (" or ".join(ways) or "another estimator")
        + "."
    )
    if found.by_draws and not enough:
        yield f"No number of draws up to {max(found.by_draws)} brings it under {NOISE_LIMIT}."


def _on_bypass(found: Findings) -> Iterator[str]:
    rate, error = found.configured.bypass_rate, found.configured.bypass_error
    told = f"Predicted bypass rate {rate:.2%} ± {error:.2%} at the first update of a phase"
    if found.configured.entries < ENTRIES:
        yield (
            f"Only {found.configured.entries} log-ratios were drawn: raise job.repetitions or "
            f"job.phases to have {ENTRIES}."
        )
    if found.negatives == 0:
        yield f"{told}: no advantage is negative, there is no bypass."
    elif rate <= BYPASS_LIMIT:
        yield f"{told}: not above {BYPASS_LIMIT:.0%}; drift within a phase adds to it."
    elif found.unbounded:
        yield (
            f"{told}, above {BYPASS_LIMIT:.0%}, and the configured clipping leaves A < 0 with a "
            "large ratio unbounded: a risk of collapse (a prediction, not a fact). "
            "clipping=unconditional or paired masks close it."
        )
    else:
        yield (
            f"{told}, above {BYPASS_LIMIT:.0%}, but the configured clipping bounds those weights; "
            "clipping=conditional would not."
        )


def _on_spread(found: Findings) -> Iterator[str]:
    order = ordered(found.spreads)
    if not order:
        return
    first, last = (found.spreads[name] for name in (order[0], order[-1]))
    if last.mean == 0:
        yield "No rule has a gradient on this batch: all rewards of every group are equal."
    elif found.configured.std == 0:
        yield "Every ratio is 1 at the first update: rules can differ only through later drift."
    else:
        yield (
            f"Steadiest gradient: {order[0]} (std/mean {first.relative:.2f}); least steady: "
            f"{order[-1]} ({last.relative:.2f})."
        )
    spiky = [name for name in order if found.spreads[name].peak > SPREAD_LIMIT]
    if spiky:
        yield f"Norms above {SPREAD_LIMIT:g} times their median: {', '.join(spiky)}."


def _on_accuracy(found: Findings) -> Iterator[str]:
    item = found.accuracy
    if item is None:
        return
    measured = f"{item.bias:+.3g} ± {item.bias_error:.2g} nats"
    if abs(item.bias) > 2 * item.bias_error:
        yield f"{found.estimator} is biased against the order-averaged ELBO: {measured}."
    else:
        yield f"{found.estimator} shows no bias against the order-averaged ELBO: {measured}."


def page(found: Findings, heading: str) -> str:
    """Everything as Markdown: what probe.md holds and the terminal shows."""
    return "\n\n".join(
        [
            f"# Probe: {heading}",
            "All at θ = θ_old, before any training.",
            "## Estimator against exact",
            _accuracy_text(found),
            "## One evaluation: spread and cost",
            _evaluations_text(found.evaluations),
            "## Log-ratio noise and predicted bypass",
            _noise_table("masks", found.noise),
            "`paired` and `shared` are 0 by construction; this is their measured value. Share of "
            f"A < 0: {found.negatives:.1%}.",
            *_draws_section(found),
            "## Gradient norm over phases and mask draws, steadiest rule first",
            _spread_table(found),
            "## Recommendation (predictions by rule, not facts)",
            "\n".join(f"- {line}" for line in recommendations(found)),
        ]
    )


def _accuracy_text(found: Findings) -> str:
    if found.accuracy is None:
        return f"Not enumerated: {found.not_enumerated}."
    header = ("of", "completions", "draws of each", "exact", "bias", "± error", "std")
    rows = [_accuracy_row("value", found.accuracy)]
    if found.negative_accuracy is not None:
        rows.append(_accuracy_row("score where A ≤ 0", found.negative_accuracy))
    return _table(header, rows) + "\n\nNats per completion; exact: the order-averaged ELBO."


def _accuracy_row(name: str, item: Accuracy) -> tuple[str, ...]:
    numbers = (f"{value:.4g}" for value in (item.exact, item.bias, item.bias_error, item.std))
    return (name, str(item.completions), str(item.repetitions), *numbers)


def _evaluations_text(item: Evaluations) -> str:
    header = ("completions", "draws of each", "std", "std in the group", "forwards", "time")
    row = (
        str(item.completions),
        str(item.repetitions),
        *(f"{value:.4g}" for value in (item.std, item.group_std, item.forwards, item.time)),
    )
    return _table(header, [row]) + (
        "\n\nNats per completion. In the group: of the value minus its group's mean, "
        "√(G/(G−1)) times, which is std where members share nothing. Forwards: rows the model "
        "scored per completion. Time: in forward passes of a completion, timed beside it."
    )


def _draws_section(found: Findings) -> list[str]:
    if not found.by_draws:
        return [f"`{found.estimator}` has no number of draws."]
    table = _noise_table("draws", {str(draws): item for draws, item in found.by_draws.items()})
    return ["By number of mask draws, masks independent:", table]


def _noise_table(name: str, noise: Mapping[str, Noise]) -> str:
    header = (name, "noise (nats)", "bypass rate", "± error", "log-ratios")
    rows = [
        (
            key,
            f"{item.std:.4g}",
            f"{item.bypass_rate:.4f}",
            f"{item.bypass_error:.4f}",
            str(item.entries),
        )
        for key, item in noise.items()
    ]
    return _table(header, rows)


def _spread_table(found: Findings) -> str:
    rows = []
    for name in ordered(found.spreads):
        item = found.spreads[name]
        values = (item.mean, item.std, item.relative, item.peak)
        rows.append((name, *(f"{value:.4g}" for value in values)))
    return _table(("rule", "mean", "std", "std/mean", "max/median"), rows)


def _table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table, numbers to the right."""
    rule = ["---", *["---:"] * (len(header) - 1)]
    return "\n".join("| " + " | ".join(row) + " |" for row in (header, rule, *rows))
