"""Files that are read: which content they have, and lines of JSON with their faults in words.

Shared by the configuration, jobs and tasks.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any


def content_hash(*paths: str | None) -> str | None:
    """Sixteen hex digits of the content of local files, whatever they are called and wherever.

    None names no file. None unless every file that is named is there.
    """
    named = [Path(os.path.expanduser(path)) for path in paths if path is not None]
    if not named or not all(path.is_file() for path in named):
        return None
    total = hashlib.sha256()
    for path in named:
        with path.open("rb") as file:
            total.update(hashlib.file_digest(file, "sha256").digest())
    return total.hexdigest()[:16]


def split_lines(content: bytes) -> Iterator[tuple[int, bytes]]:
    """Numbers (1-based, blank lines counted) and texts of the lines that are not blank."""
    content = content.removeprefix(b"\xef\xbb\xbf")  # Windows' byte order mark
    return ((number, text) for number, text in enumerate(content.split(b"\n"), 1) if text.strip())


def read_object(text: bytes, wanted: str) -> dict[str, Any]:
    """The JSON object of a line; ValueError with the reason, `wanted` (what it should be) in it."""
    try:
        content = json.loads(text.decode())
        json.dumps(content, ensure_ascii=False).encode()  # or it could not be written again
    except UnicodeEncodeError as error:
        reason = f"half of a character, {error.object[error.start]!a}; remove it"
    except UnicodeDecodeError as error:
        reason = f"not UTF-8: {error.reason}; save the file as UTF-8"
    except json.JSONDecodeError as error:
        reason = f"not JSON: {error.msg} at character {error.pos + 1}; {wanted}"
    except (RecursionError, ValueError) as error:  # nested too deep, a number of 5000 digits
        reason = f"not JSON that can be read: {error}; {wanted}"
    else:
        if isinstance(content, dict):
            return content
        reason = f"no JSON object; {wanted}"
    raise ValueError(reason)
