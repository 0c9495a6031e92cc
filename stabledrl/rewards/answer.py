"""Finding the answer in a completion, and judging its format.

Everything here is linear in the length of the text: no backtracking expression, no nesting limit.
Tags are case-sensitive. Published graders and where they go wrong:
tests/golden/rewards.json (d1, diffu-grpo/reward_func.py).
"""

from __future__ import annotations

OPENING = "<answer>"
CLOSING = "</answer>"
TAGS = ("<reasoning>", "</reasoning>", OPENING, CLOSING)
BOXED = "\\boxed{"


def last_block(text: str) -> str | None:
    """Content of the last complete `<answer>…</answer>` block, or None when there is none."""
    start = text.rfind(OPENING, 0, max(0, text.rfind(CLOSING)))
    if start < 0:
        return None
    # The first closing tag after it: a stray second one does not belong to the answer.
    return text[start + len(OPENING) : text.index(CLOSING, start)]


def last_boxed(text: str) -> str | None:
    r"""Content of the last `\boxed{…}` (braces balanced), or None when there is none."""
    position = text.rfind(BOXED)
    if position < 0:
        return None
    start = position + len(BOXED)
    depth = 1
    for offset in range(start, len(text)):
        depth += (text[offset] == "{") - (text[offset] == "}")
        if depth == 0:
            return text[start:offset]
    return None


def marked_answer(text: str) -> str | None:
    r"""The last `<answer>` block or, without one, the last `\boxed{…}`; stripped, None for neither.

    A `\boxed{…}` inside the block wins over the words around it.
    """
    block = last_block(text)
    boxed = last_boxed(text if block is None else block)
    answer = block if boxed is None else boxed
    return None if answer is None else answer.strip()


def final_answer(text: str) -> str:
    r"""What a completion answers: the last `<answer>` block, else the whole text, stripped.

    A `\boxed{…}` inside it wins over the words around it. An opened and never closed `<answer>`
    is no block: such a text keeps its tag, and no grader takes a tag for an answer.
    """
    answer = marked_answer(text)
    return text.strip() if answer is None else answer


def strict_format(text: str) -> float:
    """1.0 for exactly one `<reasoning>…</reasoning><answer>…</answer>` and nothing else, else 0.0.

    Both may run over many lines; white space around and between the blocks does not matter
    (d1 pays nothing for reasoning over two lines or without the final newline).
    """
    positions = [text.find(tag) for tag in TAGS]
    if positions != sorted(positions) or any(text.count(tag) != 1 for tag in TAGS):
        return 0.0
    reasoning, reasoned, answer, closing = positions
    between = text[reasoned + len(TAGS[1]) : answer]
    outside = (text[:reasoning], between, text[closing + len(CLOSING) :])
    return float(not any(piece.strip() for piece in outside))
