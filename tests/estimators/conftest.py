"""The model whose recordings of published code most of the tests compare with."""

import pytest

from stabledrl.policy import Policy
from tests.policies import golden_llada


@pytest.fixture(scope="module")
def policy() -> Policy:
    """The published tiny LLaDA."""
    return golden_llada()
