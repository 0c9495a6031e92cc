"""jsonl in and out: what a line may be, and how each fault is told."""

import json

import pytest

from stabledrl.errors import UserError
from stabledrl.jobs import lines as module
from stabledrl.jobs.generate import generate
from stabledrl.jobs.grade import grade
from stabledrl.jobs.lines import Answer, Pair, Question, portions, read_lines, write_lines
from stabledrl.jobs.score import score
from tests.training.small_runs import small

GOOD = b'{"prompt": "1+1=", "completion": "2", "data": {}}'


def told(path, shape=Pair):
    with pytest.raises(UserError) as error:
        read_lines(str(path), shape)
    assert "\n" not in str(error.value)
    return str(error.value)


def test_lines_keep_their_numbers_and_all_they_hold(tmp_path):
    path = tmp_path / "in.jsonl"
    rich = {"prompt": "é\u2028", "completion": "", "mine": [1, {"a": None}]}
    texts = [
        b"\xef\xbb\xbf" + GOOD,
        b"",
        b"  \r",
        json.dumps(rich, ensure_ascii=False).encode() + b"\r",
        b"",
    ]
    path.write_bytes(b"\n".join(texts))
    one, two = read_lines(str(path), Pair)
    assert (one.number, two.number) == (1, 4)
    assert one.content == json.loads(GOOD)
    assert two.content == rich
    assert (two.item.prompt, two.item.completion) == ("é\u2028", "")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (b"prompt: 1", "not JSON: Expecting value at character 1"),
        (b'{"prompt": "1", "completion": "2"', "not JSON: "),
        (b'["1", "2"]', "no JSON object"),
        (b"[" * 100_000, "not JSON that can be read: "),
        (b'{"prompt": ' + b"1" * 5000 + b"}", "not JSON that can be read: "),
        (b'{"prompt": "\xff"}', "not UTF-8"),
        (b'{"completion": "2"}', "the key 'prompt' is missing"),
        (b'{"prompt": "1"}', "the key 'completion' is missing"),
        (b'{"prompt": "1", "completion": 2}', "'completion': Input should be a valid string"),
        (b'{"prompt": ["1"], "completion": "2"}', "'prompt': Input should be a valid string"),
        (b'{"prompt": "", "completion": "2"}', "'prompt': String should have at least 1 char"),
        (b'{"prompt": "1", "completion": "\\ud800"}', "half of a character, '\\ud800'; remove it"),
    ],
    ids=lambda item: str(item[:30]),
)
def test_a_fault_is_told_with_its_line(tmp_path, text, words):
    path = tmp_path / "in.jsonl"
    path.write_bytes(GOOD + b"\n\n" + text + b"\n" + GOOD)
    line = told(path)
    assert line.startswith(f"job.input={path}, line 3: {words}")
    assert "UTF-8" in line or "half" in line or line.endswith(f"a line should be {Pair.example}")


def test_shapes_ask_for_what_their_job_needs(tmp_path):
    path = tmp_path / "in.jsonl"
    path.write_text('{"prompt": "1", "completion": "2", "data": [1]}')
    assert "line 1: 'data': Input should be a valid dictionary" in told(path, Answer)
    path.write_text('{"completion": "2"}')
    assert "line 1: the key 'data' is missing" in told(path, Answer)
    assert "line 1: the key 'prompt' is missing" in told(path, Question)


def test_files_that_hold_nothing(tmp_path):
    assert "No such file" in told(tmp_path / "none.jsonl")
    assert "Is a directory" in told(tmp_path)
    (tmp_path / "empty.jsonl").write_text("\n \n")
    assert "the file is empty" in told(tmp_path / "empty.jsonl")
    with pytest.raises(UserError, match=r"job\.input is null: name a jsonl file"):
        read_lines(None, Pair)


@pytest.mark.parametrize(
    ("job", "settings"),
    [
        (generate, {"split": "test", "prompts": 1, "samples": 1, "rows": 1}),
        (score, {"repeats": 1, "rows": 1}),
        (grade, {}),
    ],
)
def test_jobs_refuse_before_they_leave_or_load_anything(tmp_path, job, settings):
    path = tmp_path / "in.jsonl"
    path.write_text("{}")
    cfg = small(tmp_path / "run", f"job={job.__name__}")
    cfg.model = {"_target_": "nowhere"}
    with pytest.raises(UserError, match=r"line 1: the key '.*' is missing"):
        job(cfg, input=str(path), **settings)
    assert not (tmp_path / "run").exists()


def test_portions_keep_the_order(monkeypatch):
    monkeypatch.setattr(module, "PORTION", 2)
    assert list(portions([1, 2, 3, 4, 5])) == [[1, 2], [3, 4], [5]]


def test_what_is_written_is_json_and_there_at_once(tmp_path):
    path = tmp_path / "out.jsonl"
    with path.open("w", encoding="utf-8") as file:
        write_lines(file, [{"a": "é\n", "b": float("nan")}, {"c": [1.0, float("inf")]}])
        read = [json.loads(line) for line in path.read_bytes().splitlines()]
    assert read == [{"a": "é\n", "b": None}, {"c": [1.0, None]}]
