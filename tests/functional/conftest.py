"""The clippings and normalizations every test of the table runs over, and how they compose."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from stabledrl.functional import clipping as clippings
from stabledrl.functional import normalization as normalizations

CLIPPINGS = (
    clippings.none,
    clippings.uniform,
    clippings.conditional,
    clippings.dual,
    clippings.capped_negative,
    clippings.unconditional,
)
NORMALIZATIONS = (
    normalizations.group,
    normalizations.self_normalized,
    normalizations.batch_self,
    normalizations.sequence_token_mean,
    normalizations.fixed_length,
    normalizations.token,
    normalizations.length_weighted,
    normalizations.unnormalized,
)


@pytest.fixture(params=CLIPPINGS, ids=lambda function: function.__name__, scope="session")
def clipping(request: pytest.FixtureRequest) -> Callable[..., tuple[Tensor, Tensor]]:
    """Every clipping, with its default numbers."""
    return request.param


@pytest.fixture(params=NORMALIZATIONS, ids=lambda function: function.__name__, scope="session")
def normalization(request: pytest.FixtureRequest) -> Callable[..., Tensor]:
    """Every normalization."""
    return request.param


@pytest.fixture(scope="session")
def coefficient() -> Callable[..., Tensor]:
    """c = k·w/Z of a clipping and a normalization."""

    def compose(clipping, normalization, log_ratio, advantage, mask=None, length=None, size=8):
        if mask is None:
            mask = torch.ones_like(log_ratio, dtype=torch.bool)
        if length is None:
            length = torch.full(advantage.shape, log_ratio.shape[-1])
        log_weight, keep = clipping(log_ratio, advantage)
        return torch.where(keep, normalization(log_weight, mask, length, size), 0)

    return compose
