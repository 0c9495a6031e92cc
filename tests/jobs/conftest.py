"""Jobs set environment variables for W&B: each test gives the environment back as it was."""

import os
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def _environment() -> Iterator[None]:
    before = dict(os.environ)
    yield
    os.environ.clear()
    os.environ.update(before)
