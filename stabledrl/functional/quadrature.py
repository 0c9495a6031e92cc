"""The integral over masking rates by Gauss–Legendre nodes, for GDPO's proxy (arXiv 2510.08554).

    J ≈ ∫₀¹ E[ (1/t)·Σ_masked log p ] dt ≈ Σ_k w_k·(1/rate_k)·Σ_masked log p

A division `(node, length) -> (count, rate)` says how many of L tokens a node t hides, and what its
sum is divided by; your own with this signature will do as well. Shapes: node [node] in (0, 1),
length [sample], count and rate [node, sample].
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

Nodes: TypeAlias = Float[Tensor, " node"]
Length: TypeAlias = Int[Tensor, " sample"]
Divided: TypeAlias = tuple[Int[Tensor, "node sample"], Float[Tensor, "node sample"]]
Division: TypeAlias = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]


def gauss_legendre(nodes: int) -> tuple[Nodes, Nodes]:
    """Nodes in (0, 1), ascending, and weights that sum to 1: exact up to degree 2·nodes − 1.

    Golub and Welsch (1969): eigenvalues of the Jacobi matrix of Legendre's polynomials, squared
    first components of its eigenvectors. float64.
    """
    order = torch.arange(1, nodes, dtype=torch.float64)
    beside = order / (4 * order.square() - 1).sqrt()
    position, vector = torch.linalg.eigh(beside.diag(1) + beside.diag(-1))
    # symmetric to the last bit: ⌊L/2⌋ tokens at the middle node must not become one fewer
    position = (position - position.flip(0)) / 2
    weight = vector[0].square()
    return (1 + position) / 2, (weight + weight.flip(0)) / 2


def realised_rate(node: Nodes, length: Length) -> Divided:
    """m = max(1, ⌊t·L⌋), divided by m/L: what is hidden counts. Exact for a constant log p."""
    length = length.clamp(min=1)
    count = (node[:, None] * length).long().clamp(min=1)
    return count, count / length.double()


def node_rate(node: Nodes, length: Length) -> Divided:
    """m = ⌊t·L⌋, divided by t: GDPO's published code. Too small by m/(t·L); m may be 0."""
    rate = node[:, None].expand(-1, len(length))
    return (rate * length).long(), rate


def quadrature_weight(
    scored: Bool[Tensor, "draw sample position"],
    node_weight: Float[Tensor, " draw"],
    rate: Float[Tensor, "draw sample"],
) -> Float[Tensor, "draw sample position"]:
    """w_k/rate_k at the scored tokens of every draw; float32.

    node_weight: of the node of each draw, shared out among the draws of that node.
    """
    return scored * (node_weight[:, None] / rate).float()[..., None]
