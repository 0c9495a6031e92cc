"""Variance of the unbiased estimators at equal cost, from all 2^L masks instead of draws.

    python benchmarks/estimator_variance.py [--completions 128] [experiment=countdown seed=0 …]

What `estimator_table.py` estimates from draws, worked out for the completions of the first phase of
a run with these settings. With g(S) = (L/m)·Σ_{k∈S} log p_k(S), μ_m and v_m its mean and variance
over the S of m tokens:

    elbo        σ² = mean_m(v_m + μ_m²) − J², for a draw and for a pass alike
    stratified  mean_m v_m + K·Var_u(mean_j μ_{m_j(u)})
    coupled     the variance of a pair over l and S, times its 2L/(L+1) passes

each a mean over completions, in nats² · forward passes.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

import torch
from hydra import compose, initialize_config_dir
from jaxtyping import Bool, Float
from torch import Tensor

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
os.environ.setdefault("STABLEDRL_ROOT", str(ROOT))

from stabledrl.config import register_resolvers  # noqa: E402
from stabledrl.functional.enumeration import all_subsets  # noqa: E402
from stabledrl.functional.strata import stratified_counts  # noqa: E402
from stabledrl.jobs.probe import collect_phases  # noqa: E402
from stabledrl.types import Scorer, Sequences  # noqa: E402

DRAWS = (2, 4, 8, 16)
STARTS = 20_000  # of u, in the integral over it
ROWS = 1024  # of a forward pass


def log_probabilities(scorer: Scorer, one: Sequences) -> Float[Tensor, "subset token"]:
    """log p_k(S) of one completion for every S, 0 outside S (nats)."""
    length = int(one.length)
    hidden = ~one.completion_mask.repeat(2**length, 1)
    hidden[:, :length] = all_subsets(length)
    with torch.no_grad():
        parts = [
            scorer.log_likelihood(one[torch.zeros(len(mask), dtype=torch.long)], mask)
            for mask in hidden.split(ROWS)
        ]
    return torch.cat(parts)[:, :length].double()


def variances(
    log_probability: Float[Tensor, "subset token"], subset: Bool[Tensor, "subset token"]
) -> dict[str, float]:
    """Variance times forward passes of every estimator for one completion (nats²)."""
    length, size = subset.shape[1], subset.sum(-1)
    mean_log = (log_probability * subset).sum(-1) / size.clamp(min=1)
    of_size = [length * mean_log[size == m] for m in range(1, length + 1)]
    mean = torch.stack([values.mean() for values in of_size])
    inside = torch.stack([values.var(correction=0) for values in of_size]).mean()
    found = {"elbo": float(inside + mean.var(correction=0))}
    start = (torch.arange(STARTS) + 0.5) / STARTS
    for draws in DRAWS:
        count = stratified_counts(torch.full((STARTS,), length), start, draws)
        between = mean[count - 1].mean(0).var(correction=0)
        found[f"stratified, K={draws}"] = float(inside + draws * between)
    return found | {"coupled": coupled_variance(mean_log, subset)}


def coupled_variance(
    mean_log: Float[Tensor, " subset"], subset: Bool[Tensor, "subset token"]
) -> float:
    """Of a pair of mask and complement, l ~ U{0…L}, times its forward passes."""
    length, size = subset.shape[1], subset.sum(-1)
    place = 2 ** torch.arange(length)
    row = torch.empty_like(size)
    row[(subset * place).sum(-1)] = torch.arange(len(size))
    complement = mean_log[row[(~subset * place).sum(-1)]]
    pair = (length + 1) / 2 * (mean_log + complement)
    chance = 1 / ((length + 1) * size.bincount()[size])
    center = (chance * pair).sum()
    return float((chance * (pair - center).square()).sum()) * 2 * length / (length + 1)


def main() -> None:
    """Print a line per estimator: variance times forward passes, and over that of elbo."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--completions", type=int, default=128, help="spread over the phase")
    parser.add_argument("overrides", nargs="*", help="as for run.py: experiment=countdown …")
    given = parser.parse_args()
    register_resolvers()
    with initialize_config_dir(str(ROOT / "conf"), version_base="1.3"):
        probe = collect_phases(compose("config", ["job=probe", *given.overrides]), 1)
    sequences = probe.phases[0].sequences
    chosen = range(0, len(sequences), max(1, len(sequences) // given.completions))
    found: dict[str, list[float]] = {}
    for index in chosen:
        one = sequences[index : index + 1]
        table = log_probabilities(probe.policy, one)
        for name, value in variances(table, all_subsets(int(one.length))).items():
            found.setdefault(name, []).append(value)
    for name, values in found.items():
        print(f"{name:20} {sum(values) / len(chosen):9.4f} {sum(values) / sum(found['elbo']):7.3f}")


if __name__ == "__main__":
    main()
