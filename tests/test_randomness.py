"""Keyed generators: the same key, the same numbers, on every machine."""

from __future__ import annotations

import hashlib

import torch

from stabledrl.randomness import keyed_generator


def numbers(*key: int | str) -> list[float]:
    return torch.rand(3, generator=keyed_generator(*key)).tolist()


def test_the_key_decides_and_nothing_else() -> None:
    assert numbers("masks", 0, 3, "old") == numbers("masks", 0, 3, "old")
    other = [
        ("masks", 0, 3, "update 0"),
        ("masks", 0, 4, "old"),
        ("masks", 1, 3, "old"),
        ("completions", 0, 3, "old"),
        ("masks", 3, 0, "old"),
        ("masks", "0", 3, "old"),
        ("masks", 0, 3),
    ]
    drawn = {tuple(numbers(*key)) for key in [("masks", 0, 3, "old"), *other]}
    assert len(drawn) == 1 + len(other)


def test_the_seed_is_a_hash_written_down() -> None:
    # Python's own hash() would differ from process to process
    digest = hashlib.blake2b(b"('masks', 0)", digest_size=8).digest()
    seed = int.from_bytes(digest, "little") // 2
    assert keyed_generator("masks", 0).initial_seed() == seed


def test_the_global_random_state_is_neither_read_nor_moved() -> None:
    torch.manual_seed(1)
    before = torch.random.get_rng_state()
    first = numbers("a")
    assert torch.equal(torch.random.get_rng_state(), before)
    torch.manual_seed(2)
    assert numbers("a") == first
