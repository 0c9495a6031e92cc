"""job=score: what a policy gives to texts, against enumeration by hand and its own evaluations."""

import itertools
import json
import math

import pytest
import torch

from stabledrl.config import build
from stabledrl.errors import UserError
from stabledrl.jobs import lines
from stabledrl.jobs import score as module
from stabledrl.jobs.score import Evaluated, score, summarize
from tests.policies import END, MASK
from tests.training.small_runs import LENGTH, small

PAIRS = [
    {"prompt": "1+2=", "completion": "3", "id": "a"},
    {"prompt": "12345*6=", "completion": "405123"},
    {"prompt": "7=", "completion": ""},
    {"prompt": "9-8=", "completion": "12<end>"},
]
LIVELY = ("model.seed=3", "model.hidden_size=16")


def scored(directory, *overrides, contents=PAIRS, repeats=3, rows=100):
    directory.mkdir(exist_ok=True)
    path = directory / "in.jsonl"
    path.write_text("".join(json.dumps(content) + "\n" for content in contents))
    cfg = small(directory, "job=score", *LIVELY, *overrides)
    value = score(cfg, input=str(path), repeats=repeats, rows=rows)
    found = [json.loads(line) for line in (directory / "scores.jsonl").read_text().splitlines()]
    summary = json.loads((directory / "summary.json").read_text())
    if not math.isnan(value):
        assert summary["optimized_metric"] == value
    return found, summary["metrics"]


def mean_over_orders(policy, prompt, counted):
    """Mean over all orders of Σ log p(next token | those before, the rest masked), by hand."""
    orders = list(itertools.permutations(range(len(counted))))
    total = 0.0
    for order in orders:
        shown = [MASK] * LENGTH
        for position in order:
            ids = torch.tensor([prompt + shown])
            seen = torch.ones(1, 1, ids.shape[1], ids.shape[1], dtype=torch.bool)
            with torch.no_grad():
                logits = policy.backbone(input_ids=ids, attention_mask=seen).logits[0]
            row = logits[len(prompt) + position].double().log_softmax(-1)
            total += float(row[counted[position]])
            shown[position] = counted[position]
    return total / len(orders)


def test_exact_is_the_mean_over_orders_and_has_no_spread(tmp_path):
    found, metrics = scored(tmp_path, "estimator=exact")
    policy = build(small(tmp_path / "other", *LIVELY).model)
    vocabulary = policy.tokenizer.get_vocab()
    expected = {
        0: [vocabulary["3"], END],  # an end token is added where there is room
        2: [END],
        3: [vocabulary["1"], vocabulary["2"], END],  # and not where there is one
    }
    for index, counted in expected.items():
        prompt = [vocabulary[letter] for letter in PAIRS[index]["prompt"]]
        value = mean_over_orders(policy, prompt, counted)
        assert found[index]["value"] == pytest.approx(value, rel=1e-5)
        assert found[index]["tokens"] == len(counted)
        assert found[index]["value_per_token"] == pytest.approx(value / len(counted), rel=1e-5)
    assert found[1]["tokens"] == LENGTH  # no room
    assert [item["spread"] for item in found] == [0] * 4
    assert [item["standard_error"] for item in found] == [0] * 4
    assert metrics["value"] == pytest.approx(sum(item["value"] for item in found) / 4)
    assert metrics["spread"] == metrics["standard_error"] == 0


def test_numbers_follow_from_the_evaluations(tmp_path, capsys):
    found, metrics = scored(tmp_path, "estimator.draws=2", repeats=4)
    assert [{key: it[key] for key in pair} for pair, it in zip(PAIRS, found, strict=True)] == PAIRS
    for item in found:
        values = item["evaluations"]
        assert len(values) == 4
        mean = sum(values) / 4
        spread = math.sqrt(sum((value - mean) ** 2 for value in values) / 3)
        assert item["value"] == pytest.approx(mean)
        assert item["spread"] == pytest.approx(spread, abs=1e-12)
        assert item["standard_error"] == pytest.approx(spread / 2, abs=1e-12)
    assert found[1]["spread"] > 0
    assert found[2]["spread"] == 0  # a single token is masked whatever is drawn
    # the error of the mean is between evaluations of all pairs, which may share a draw
    means = [sum(item["evaluations"][repeat] for item in found) / 4 for repeat in range(4)]
    center = sum(means) / 4
    error = math.sqrt(sum((mean - center) ** 2 for mean in means) / 3) / 2
    assert metrics["standard_error"] == pytest.approx(error)
    assert metrics["not_finite"] == 0
    shown = capsys.readouterr().out
    assert "mean value" in shown
    assert "scores " in shown


def test_the_mean_of_many_evaluations_is_that_of_exact(tmp_path):
    truth, _ = scored(tmp_path / "exact", "estimator=exact", contents=PAIRS[:1])
    (item,), _ = scored(tmp_path / "elbo", contents=PAIRS[:1], repeats=400)
    assert item["spread"] > 0
    assert abs(item["value"] - truth[0]["value"]) < 4 * item["standard_error"]


@pytest.mark.parametrize("estimator", ["elbo", "mean_field", "exact"])
def test_rows_change_nothing(tmp_path, estimator):
    whole, _ = scored(tmp_path / "a", f"estimator={estimator}")
    parts, _ = scored(tmp_path / "b", f"estimator={estimator}", rows=1)
    for one, other in zip(whole, parts, strict=True):
        assert one["evaluations"] == pytest.approx(other["evaluations"], rel=1e-5)
    again, _ = scored(tmp_path / "a", f"estimator={estimator}")
    assert again == whole


def test_the_seed_draws_and_portions_draw_on_their_own(tmp_path, monkeypatch):
    whole, _ = scored(tmp_path / "a")
    assert scored(tmp_path / "b", "seed=1", "model.seed=3")[0] != whole
    monkeypatch.setattr(lines, "PORTION", 2)
    parts, _ = scored(tmp_path / "c")
    assert [item["prompt"] for item in parts] == [pair["prompt"] for pair in PAIRS]
    first, _ = scored(tmp_path / "d", contents=PAIRS[:2])
    assert parts[:2] == first


def test_what_draws_nothing_is_evaluated_once(tmp_path, monkeypatch):
    calls = []
    inner = module.build

    def counting(node):
        built = inner(node)
        if "estimators" in node["_target_"]:
            return Counting(built, calls)
        return built

    monkeypatch.setattr(module, "build", counting)
    scored(tmp_path / "a", "estimator=mean_field", "estimator.prompt_mask_probability=0")
    assert len(calls) == 1
    scored(tmp_path / "b", "estimator=mean_field")
    assert len(calls) == 1 + 3


class Counting:
    """An estimator that notes its calls."""

    def __init__(self, estimator, calls):
        self.estimator, self.calls = estimator, calls
        self.draw = estimator.draw

    def __call__(self, *arguments):
        self.calls.append(1)
        return self.estimator(*arguments)


def test_a_single_evaluation_has_no_spread_that_could_be_known(tmp_path):
    found, metrics = scored(tmp_path, repeats=1)
    assert found[1]["spread"] is found[1]["standard_error"] is None
    assert "spread" not in metrics
    single = Evaluated(torch.tensor([[-3.0]]))
    assert summarize(single, torch.tensor([2]))[0]["value_per_token"] == -1.5


def test_a_likelihood_that_is_nan_is_written_as_null_and_counted(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(module, "evaluations", lambda *_: Evaluated(torch.tensor(NAN)))
    found, metrics = scored(tmp_path, repeats=2)
    assert [item["value"] for item in found] == [-1.5, None, None, -4.0]
    assert found[1]["evaluations"] == [None, -1.0]
    assert (metrics["not_finite"], metrics["value"]) == (2, None)
    assert "2 pairs have a likelihood that is NaN or infinite" in capsys.readouterr().out


NAN = [[-1.0, math.nan, -2.0, -4.0], [-2.0, -1.0, -math.inf, -4.0]]


def test_sandwich_has_both_its_scores(tmp_path):
    found, _ = scored(tmp_path / "a", "estimator=sandwich", contents=PAIRS[1:2])
    elbo, _ = scored(tmp_path / "b", "estimator.draws=2", contents=PAIRS[1:2])
    assert found[0]["value"] == elbo[0]["value"]  # of the same masks
    assert found[0]["negative_score"] != found[0]["value"]
    assert found[0]["negative_score_spread"] > 0
    assert "negative_score" not in elbo[0]


@pytest.mark.parametrize(
    ("pair", "words"),
    [
        (
            {"completion": "1234567"},
            "'completion' has 7 tokens, sampler.length=6 is shorter",
        ),
        ({"completion": "1?"}, "'completion' has characters that the model's tokenizer"),
        ({"completion": "1<mask>2"}, "'completion' holds the model's mask token"),
        ({"completion": "1<end>2"}, "'completion' goes on after an end token"),
        ({"prompt": "why"}, "'prompt' has characters that the model's tokenizer"),
    ],
    ids=str,
)
def test_texts_that_cannot_be_scored_as_they_are_are_refused(tmp_path, pair, words):
    contents = [PAIRS[0], {"prompt": "1=", "completion": "1", **pair}]
    with pytest.raises(UserError) as told:
        scored(tmp_path, contents=contents)
    assert f"in.jsonl, line 2: {words}" in str(told.value)
    assert not (tmp_path / "scores.jsonl").exists()


def test_the_tokenizers_own_word_for_unknown_is_known(tmp_path):
    found, _ = scored(tmp_path, contents=[{"prompt": "1=", "completion": "1<unknown><pad>"}])
    assert found[0]["tokens"] == 4  # and the end
