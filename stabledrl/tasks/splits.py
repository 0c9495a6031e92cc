"""Splits and seeded streams, as every generated task needs them.

A split is a property of the item, never of the order in which items are drawn: each task says
which items belong to which split, and this module says which generator draws item `index`.
"""

from __future__ import annotations

import hashlib
import random

from stabledrl.errors import did_you_mean, listing

SPLITS = ("train", "validation", "test")


def require_split(split: str) -> None:
    """Refuse (ValueError) a name that is no split, naming the nearest one and all three."""
    if split not in SPLITS:
        hint = did_you_mean(split, SPLITS)
        raise ValueError(f"unknown split {split!r}{hint} (there are {listing(SPLITS)})")


def question_hash(question: str) -> str:
    """Identity of a question, whatever white space it is written with."""
    return hashlib.sha256(" ".join(question.split()).encode()).hexdigest()[:16]


def split_of_key(key: str, validation_share: float, test_share: float) -> str:
    """Split of an item by the SHA-256 of its key: the same in every file, order and process.

    Shares are rounded to thousandths. Test takes the hash's lowest residues, validation the next.
    """
    residue = int.from_bytes(hashlib.sha256(key.encode()).digest()[:8], "big") % 1000
    if residue < round(test_share * 1000):
        return "test"
    if residue < round((validation_share + test_share) * 1000):
        return "validation"
    return "train"


def item_generator(task: str, split: str, seed: int, index: int) -> random.Random:
    """The generator of one item, so that item `index` is the same however it is batched.

    A string seed goes through SHA-512, not through `hash`: the same in every process.
    """
    return random.Random(f"{task}/{split}/{seed}/{index}")


def require_range(start: int, count: int) -> None:
    """Refuse (ValueError) a negative start or count of a stream."""
    if start < 0 or count < 0:
        raise ValueError(f"start and count of a stream are 0 or more, got {start} and {count}")
