"""Where the items of a data set come from: a jsonl or parquet file, or a split on the hub.

Every fault names the file and the line (a row, in parquet), both counted from 1.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stabledrl.errors import UserError, one_line
from stabledrl.files import read_object, split_lines

HUB = "hub:"
HUB_FORM = "hub:owner/name/split or hub:owner/name/configuration/split"


@dataclass(frozen=True)
class Item:
    """One item and where it stands. place: "file, line 3" or the like."""

    place: str
    content: Mapping[str, Any]

    def fault(self, reason: str) -> UserError:
        """An error about this item."""
        return UserError(f"{self.place}: {reason}")


def read_items(path: str, wanted: str) -> list[Item]:
    """All items of `path`: a .parquet file, a `hub:…` split, or a file of one JSON object a line.

    wanted: what an item should be, for messages. UserError for whatever cannot be read, and for
    nothing at all.
    """
    if path.startswith(HUB):
        items = _from_hub(path)
    elif path.endswith(".parquet"):
        items = _from_parquet(Path(os.path.expanduser(path)))
    else:
        items = _from_lines(Path(os.path.expanduser(path)), wanted)
    found = list(items)
    if not found:
        raise UserError(f"{path}: there is nothing in it; {wanted}")
    return found


def _from_lines(path: Path, wanted: str) -> Iterator[Item]:
    try:
        content = path.read_bytes()
    except OSError as error:
        raise UserError(f"{path}: {error.strerror} (in {Path.cwd()}); set task.path") from error
    for number, text in split_lines(content):
        place = f"{path}, line {number}"
        try:
            yield Item(place, read_object(text, wanted))
        except ValueError as error:
            raise UserError(f"{place}: {error}") from error


def _from_parquet(path: Path) -> Iterator[Item]:
    try:
        from pyarrow import ArrowException, parquet
    except ImportError as error:
        raise UserError(f"{path}: needs pyarrow; pip install 'stabledrl[parquet]'") from error
    try:
        rows = parquet.read_table(path).to_pylist()
    except (OSError, ArrowException) as error:
        reason = one_line(error, 200)
        raise UserError(f"{path}: cannot be read as parquet: {reason}; set task.path") from error
    return (Item(f"{path}, row {number}", row) for number, row in enumerate(rows, 1))


def _from_hub(path: str) -> Iterator[Item]:
    """A split by `datasets`, which needs the network or an earlier download in its cache."""
    parts = path.removeprefix(HUB).split("/")
    if len(parts) not in (3, 4) or not all(parts):
        raise UserError(f"{path}: should be {HUB_FORM}, or name a local file in task.path")
    try:
        import datasets
    except ImportError as error:
        raise UserError(
            f"{path}: needs datasets, pip install 'stabledrl[hub]'; or download the split as jsonl "
            "or parquet and name it in task.path and task.test_path"
        ) from error
    *repository, split = parts
    try:
        rows = datasets.load_dataset("/".join(repository[:2]), *repository[2:], split=split)
    except Exception as error:  # whatever hub, cache and network have to say
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise UserError(
            f"{path}: cannot be had from the hub: {reason}; download the split as jsonl or parquet "
            "and name it in task.path and task.test_path"
        ) from error
    return (Item(f"{path}, row {number}", dict(row)) for number, row in enumerate(rows, 1))
