"""Generators keyed by what they are for: no draw depends on batching, order or resumption."""

from __future__ import annotations

import hashlib

import torch


def keyed_generator(*key: int | str) -> torch.Generator:
    """A CPU generator seeded by a hash of the key, e.g. `("masks", seed, phase, update)`.

    The same key gives the same stream on every machine and in every process; the global random
    state is never read or moved.
    """
    digest = hashlib.blake2b(repr(key).encode(), digest_size=8).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest, "little") >> 1)
