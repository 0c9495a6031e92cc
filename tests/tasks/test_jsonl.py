"""task=jsonl, gsm8k and math: reading, splits, streams, asking, grading."""

import json
import sys
import types
from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir
from hydra.utils import instantiate

from stabledrl.config import register_resolvers
from stabledrl.errors import UserError
from stabledrl.fingerprint import difference, material, resolved_hash
from stabledrl.rewards.combine import Part
from stabledrl.tasks.asking import Example
from stabledrl.tasks.jsonl import Jsonl
from stabledrl.types import RewardOutput, Task
from tests.conftest import ROOT


def equal(prompt, completion):
    """A verifier of one's own."""
    right = completion == prompt.data["answer"]
    return RewardOutput(
        float(right), right, {"letters": float(len(completion))}, "" if right else "no"
    )


def written(path, *items):
    path.write_text("".join(json.dumps(item) + "\n" for item in items))
    return str(path)


def numbered(count, first=0):
    return [
        {"prompt": f"{number}+1", "answer": number + 1} for number in range(first, first + count)
    ]


@pytest.fixture
def sums(tmp_path):
    """A thousand sums."""
    return written(tmp_path / "sums.jsonl", *numbered(1000))


def texts(task, split, count=2000, seed=0):
    return [prompt.text for prompt in task.prompts(split, seed, 0, count)]


def test_splits_share_no_prompt_and_stay_when_the_file_grows(tmp_path, sums):
    task = Jsonl(equal, sums)
    splits = {split: set(texts(task, split)) for split in ("train", "validation", "test")}
    assert sorted(text for found in splits.values() for text in found) == sorted(
        f"{n}+1" for n in range(1000)
    )
    assert [len(splits[split]) / 1000 for split in splits] == pytest.approx(
        [0.8, 0.1, 0.1], abs=0.03
    )
    grown = written(tmp_path / "more.jsonl", *reversed(numbered(1500)))
    more = Jsonl(equal, grown, name="other")
    for split, before in splits.items():
        assert before < set(texts(more, split, 3000))


def test_prompts_of_the_test_file_are_left_out_of_the_others(tmp_path, sums):
    held_out = written(
        tmp_path / "t.jsonl", *numbered(10), {"prompt": " 10 +1", "answer": "x"}, *numbered(1, 5000)
    )
    task = Jsonl(equal, sums, held_out)
    test = set(texts(task, "test"))
    assert test == {*(f"{n}+1" for n in range(10)), " 10 +1", "5000+1"}
    others = set(texts(task, "train")) | set(texts(task, "validation"))
    assert others == {f"{n}+1" for n in range(10, 1000)}  # "10+1" is another text than "10 +1"
    assert not test & others


def test_streams_are_seeded_and_do_not_depend_on_batching(sums):
    task = Jsonl(equal, sums)
    assert isinstance(task, Task)
    whole = task.prompts("test", 3, 0, 250)
    assert whole == task.prompts("test", 3, 0, 70) + task.prompts("test", 3, 70, 180)
    size = len({prompt.key for prompt in whole})
    assert size < 125  # each round gives every item once, in a new order
    rounds = [[prompt.key for prompt in whole[first : first + size]] for first in (0, size)]
    assert sorted(rounds[0]) == sorted(rounds[1])
    assert rounds[0] != rounds[1]
    assert whole != task.prompts("test", 4, 0, 250)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ('{"prompt": "a"}', "line 2: the key 'answer' is missing; an item should be {"),
        ('{"prompt": "a", "answer": ""}', "line 2: 'answer' holds no answer"),
        ('{"prompt": "a", "answer": null}', "line 2: 'answer' is no text"),
        ('{"prompt": " ", "answer": "a"}', "line 2: 'prompt' is no text"),
        (
            '{"prompt": "0+1", "answer": 2}',
            "line 2: the prompt of {path}, line 1 again, with other",
        ),
        ("[1]", "line 2: no JSON object"),
        ("{", "line 2: not JSON: "),
        ('{"prompt": "\\ud800", "answer": "a"}', "line 2: half of a character"),
    ],
)
def test_faults_name_file_and_line(tmp_path, line, words):
    path = tmp_path / "x.jsonl"
    path.write_text('{"prompt": "0+1", "answer": 1}\n' + line + "\n")
    with pytest.raises(UserError) as told:
        Jsonl(equal, str(path)).prompts("train", 0, 0, 1)
    assert str(told.value).startswith(f"{path}, {words.replace('{path}', str(path))}")
    assert "\n" not in str(told.value)


def test_missing_empty_and_changed_files_are_told(tmp_path, sums):
    for task, words in [
        (Jsonl(equal), "task.path is null"),
        (Jsonl(equal, str(tmp_path / "no")), "No such file"),
        (Jsonl(equal, written(tmp_path / "empty.jsonl")), "there is nothing in it"),
        (Jsonl(equal, sums, content="0123"), "the file has changed"),
        (
            Jsonl(equal, sums, test_share=0),
            "no item falls into the test split; change task.test_sh",
        ),
        (Jsonl(equal, str(tmp_path / "no.parquet")), "cannot be read as parquet"),
        (Jsonl(equal, "hub:a/b"), "should be hub:owner/name/split"),
    ]:
        with pytest.raises(UserError, match=words):
            task.prompts("test", 0, 0, 1)
    with pytest.raises(ValueError, match=r"prompt_template needs \{prompt\}"):
        Jsonl(equal, sums, prompt_template="x")
    with pytest.raises(ValueError, match="leave nothing"):
        Jsonl(equal, sums, validation_share=0.5, test_share=0.5)
    with pytest.raises(ValueError, match="did you mean 'format'"):
        Jsonl(equal, sums, rewards={"formt": Part(1.0)})


def test_parquet_holds_the_same_items(tmp_path, sums):
    parquet = pytest.importorskip("pyarrow.parquet")
    import pyarrow

    path = tmp_path / "sums.parquet"
    parquet.write_table(pyarrow.Table.from_pylist(numbered(1000)), path)
    assert Jsonl(equal, str(path)).prompts("train", 0, 0, 9) == Jsonl(equal, sums).prompts(
        "train", 0, 0, 9
    )


def test_the_hub_is_asked_by_datasets(monkeypatch):
    asked = []

    def load_dataset(*where, split):
        asked.append((*where, split))
        if where[0] == "a/gone":
            raise ConnectionError("no network\nat all")
        return numbered(20)

    monkeypatch.setitem(sys.modules, "datasets", types.SimpleNamespace(load_dataset=load_dataset))
    Jsonl(equal, "hub:a/b/c/train", "hub:a/b/test").prompts("test", 0, 0, 1)
    assert asked == [("a/b", "test"), ("a/b", "c", "train")]
    with pytest.raises(
        UserError, match=r"^hub:a/gone/x: cannot be had from the hub: no network; d"
    ):
        Jsonl(equal, "hub:a/gone/x").prompts("test", 0, 0, 1)
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(UserError, match=r"needs datasets, pip install"):
        Jsonl(equal, "hub:a/b/x").prompts("test", 0, 0, 1)


def test_how_a_question_is_asked(sums):
    settings = {
        "prompt_template": "Q: {prompt}",
        "system_prompt": "Add.",
        "examples": [Example("1+1", "2")],
    }
    plain = Jsonl(equal, sums, **settings).prompts("train", 0, 0, 1)[0]
    question = plain.text.rpartition("Q: ")[2]
    assert plain.text == f"Add.\n\nQ: 1+1\n\n2\n\nQ: {question}"
    assert plain.messages == ()
    talk = Jsonl(equal, sums, chat=True, **settings).prompts("train", 0, 0, 1)[0]
    assert talk.messages == (
        ("system", "Add."),
        ("user", "Q: 1+1"),
        ("assistant", "2"),
        ("user", f"Q: {question}"),
    )


def test_rewards_add_up(sums):
    rewards = {"format": Part(0.5), "length": Part(1.0)}
    task = Jsonl(equal, sums, rewards=rewards, length_limit=60)
    prompt = task.prompts("train", 0, 0, 1)[0]
    right = task.solution(prompt)
    tagged = "<reasoning>\na\nb\n</reasoning>\n<answer>\n4\n</answer>"
    found = task.verify_all([prompt] * 3, [right, tagged, "x" * 90])
    assert [item.total for item in found] == [1.0, 0.5, -0.5]
    assert found[0].parts == {"correct": 1, "format": 0, "length": 0, "letters": len(right)}
    assert found == [task.verify(prompt, text) for text in (right, tagged, "x" * 90)]
    undecided = Jsonl(lambda prompt, text: RewardOutput(None, False, {}, "why"), sums)
    assert undecided.verify(prompt, "x") == RewardOutput(None, False, {}, "why")


def composed(*overrides):
    register_resolvers()
    with initialize_config_dir(str(ROOT / "conf"), version_base="1.3"):
        return compose("config", list(overrides))


GSM8K = [
    {"question": "Six eggs and 12 more?", "answer": "6+12=<<6+12=18>>18\n#### 18"},
    {"question": "A thousand twice?", "answer": "2*1000\n#### 2,000"},
]
MATH = [
    {"problem": "Half?", "solution": r"so $\boxed{\frac{1}{2}}$.", "answer": r"\frac{1}{2}"},
]


def test_gsm8k_from_a_local_file(tmp_path):
    path = written(tmp_path / "g.jsonl", *GSM8K)
    task = instantiate(composed("task=gsm8k", f"task.path={path}", f"task.test_path={path}").task)
    items = {prompt.data["answer"]: prompt for prompt in task.prompts("test", 0, 0, 2)}
    assert set(items) == {"18", "2,000"}
    prompt = items["2,000"]
    assert [role for role, _ in prompt.messages] == ["system", "user"]
    assert "<answer>\n...\n</answer>" in prompt.messages[0][1]
    completions = [task.solution(prompt), "It costs $2000.00 in all", "2000 or so \\boxed{18}"]
    found = task.verify_all([prompt] * 3, completions)
    assert [item.total for item in found] == [1.0, 1.0, 0.0]
    assert found[0].parts["format"] == 1.0
    task.close()


@pytest.mark.parametrize("extra", [(), ("task.answer_key=answer", "task.boxed_answer=false")])
def test_math_counts_marked_answers_only(tmp_path, extra):
    path = written(tmp_path / "m.jsonl", *MATH)
    overrides = ("task=math", f"task.path={path}", f"task.test_path={path}", *extra)
    task = instantiate(composed(*overrides).task)
    prompt = task.prompts("test", 0, 0, 1)[0]
    assert prompt.data == {"answer": r"\frac{1}{2}"}
    completions = [task.solution(prompt), r"\boxed{0.5}", "1/2", "<answer>2/4</answer>"]
    found = task.verify_all([prompt] * 4, completions)
    assert [item.total for item in found] == [1.0, 1.0, 0.0, 1.0]
    task.close()


def test_the_files_content_is_part_of_the_run_and_their_place_is_not(tmp_path, sums):
    other = tmp_path / "moved.jsonl"
    other.write_bytes(Path(sums).read_bytes())
    first = composed("task=jsonl", f"task.path={sums}")
    moved = composed("task=jsonl", f"task.path={other}")
    assert resolved_hash(first) == resolved_hash(moved)
    assert difference(material(first), material(moved)) is None
    other.write_text(other.read_text() + '{"prompt": "new", "answer": 1}\n')
    changed = composed("task=jsonl", f"task.path={other}")
    assert resolved_hash(first) != resolved_hash(changed)
    assert difference(material(first), material(changed))[0] == "task.content"
    assert composed("task=gsm8k").task.content is None  # the hub's name stands for itself
    assert resolved_hash(composed("task=gsm8k")) != resolved_hash(composed("task=math"))
