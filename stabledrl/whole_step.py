"""Means over a whole optimiser step where several processes make it.

A process has a part of the step's groups. What averages over all of them is given all of them: the
weights, lengths and likelihoods of the other processes come in as constants, and each process keeps
its own rows. The mean over processes of the losses is then the loss of one process that has all
groups in one batch, and so is the mean of their gradients.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from stabledrl.algorithm import Algorithm
from stabledrl.declarations import stated
from stabledrl.share import Share
from stabledrl.types import Likelihood, Sequences


def over_processes(algorithm: Algorithm, share: Share) -> Algorithm:
    """The same objective for one share of the groups of every step."""
    if share.is_whole:
        return algorithm
    normalization, penalty = algorithm.normalization, algorithm.penalty
    if stated(normalization, "needs_whole_step", False):
        normalization = _Normalization(_named(normalization), normalization, share)
    if penalty.coefficient and stated(penalty.level, "needs_whole_step", False):
        level = _Level(_named(penalty.level), penalty.level, share)
        penalty = replace(penalty, level=level)
    return replace(algorithm, normalization=normalization, penalty=penalty)


def _named(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function that states the facts of another (`stabledrl.declarations`)."""
    return getattr(function, "func", function)


@dataclass(frozen=True)
class _Normalization:
    """Weights of the step's groups on all processes, of which this one keeps its own.

    func: states the facts, as that of a partial does.
    """

    func: Callable[..., Any]
    normalization: Callable[[Tensor, Tensor, Tensor, int], Tensor]
    share: Share

    def __call__(
        self, log_weight: Tensor, mask: Tensor, length: Tensor, completion_length: int
    ) -> Tensor:
        of_all = self.share.neighbours
        weight = self.normalization(
            of_all(log_weight), of_all(mask), of_all(length), completion_length
        )
        return self.share.among_neighbours(weight)


@dataclass(frozen=True)
class _Level:
    """The divergence of the step's groups on all processes: its value, P times this one's gradient.

    So the mean over the P processes is the value and the gradient of all.
    """

    func: Callable[..., Any]
    level: Callable[..., Tensor]
    share: Share

    def __call__(
        self,
        divergence: Callable[[Tensor], Tensor],
        policy: Likelihood,
        reference: Likelihood,
        sequences: Sequences,
        verdict: Tensor,
    ) -> Tensor:
        whole = self.level(
            divergence,
            _all(policy, self._with_gradient),
            _all(reference, self.share.neighbours),
            _all(sequences, self.share.neighbours),
            self.share.neighbours(verdict),
        )
        others = whole.detach() * (self.share.processes - 1)
        return whole * self.share.processes - others

    def _with_gradient(self, own: Tensor) -> Tensor:
        """Rows of all processes, of which this one's carry the gradient."""
        parts = list(self.share.gather(own.detach()))
        parts[self.share.rank] = own
        return torch.cat(parts)


def _all(value: Any, gather: Callable[[Tensor], Tensor]) -> Any:
    """A dataclass of tensors, one row per sample, with the rows of all processes."""
    changes = {name: gather(item) for name, item in vars(value).items() if isinstance(item, Tensor)}
    return replace(value, **changes)
