"""Arithmetic: splits, streams, exact grading."""

import pytest
from pydantic import ValidationError

from stabledrl.tasks.arithmetic import Arithmetic, split_of
from stabledrl.tasks.splits import SPLITS

TASK = Arithmetic()


@pytest.mark.parametrize("split", SPLITS)
def test_items_stay_in_their_split_and_are_right(split):
    prompts = TASK.prompts(split, 1, 0, 300)
    for prompt in prompts:
        sign = "+" if "+" in prompt.text else "*"
        left, right = map(int, prompt.text.removesuffix("=").split(sign))
        assert split_of(left, sign, right) == split_of(right, sign, left) == split
        assert 10 <= min(left, right) <= max(left, right) <= 999
        result = left + right if sign == "+" else left * right
        assert prompt.data == {"answer": str(result)}
        assert TASK.verify(prompt, TASK.solution(prompt)).solved
    assert prompts == TASK.prompts(split, 1, 0, 7) + TASK.prompts(split, 1, 7, 293)
    assert prompts != TASK.prompts(split, 2, 0, 300)


def test_shares_of_the_splits():
    found = [split_of(left, "*", right) for left in range(200) for right in range(left, 200)]
    shares = [found.count(split) / len(found) for split in SPLITS]
    assert shares == pytest.approx([0.8, 0.1, 0.1], abs=0.01)


@pytest.mark.parametrize(
    ("completion", "total", "reason"),
    [
        ("1035", 1, ""),
        (" 1,035\n", 1, ""),
        ("<answer>1035</answer>", 1, ""),
        (r"so \boxed{1035}", 1, ""),
        ("01035", 1, ""),
        ("1036", 0, "another number"),
        ("10,35", 0, "no number"),
        ("1035.0", 0, "no number"),
        ("-1035", 0, "no number"),
        ("1035 or 1036", 0, "no number"),
        ("23*45", 0, "no number"),
        ("\u0661\u0660\u0663\u0665", 0, "no number"),  # Arabic digits, which int() would take
        ("9" * 100_000, 0, "no number"),
        ("", 0, "no number"),
    ],
)
def test_verdicts(completion, total, reason):
    verdict = TASK.verify(TASK.prompt(23, "*", 45), completion)
    assert (verdict.total, verdict.solved, verdict.reason) == (total, total == 1, reason)


def test_settings_that_do_not_do():
    with pytest.raises(ValueError, match="digits_minimum=4 is above"):
        Arithmetic(digits_minimum=4)
    with pytest.raises(ValidationError, match="operations"):
        Arithmetic(operations=["**"])
    with pytest.raises(ValueError, match=r"needs \{problem\}"):
        Arithmetic(prompt_template="?")
