"""LLaDA's own files: golden logits, the way back, and what is refused."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import LlamaForCausalLM

from stabledrl.models import checkpoint as checkpoints
from stabledrl.models.llada import PREFIX, load
from stabledrl.policy import PROJECTIONS
from stabledrl.rollout import rendered
from stabledrl.types import Prompt
from tests.policies import LLADA

GOLDEN = load_file(LLADA / "golden.safetensors")
NORM = f"{PREFIX}ln_f.weight"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    copy = tmp_path / "copy"
    copy.mkdir()
    for file in LLADA.iterdir():  # the originals may be read-only
        (copy / file.name).write_bytes(file.read_bytes())
    return copy


def configure(folder: Path, file: str = "config.json", **settings: object) -> None:
    """Change settings of a json file; None takes one away."""
    content = json.loads((folder / file).read_text()) | settings
    kept = {key: value for key, value in content.items() if value is not None}
    (folder / file).write_text(json.dumps(kept))


def reweigh(folder: Path, **changes: torch.Tensor | None) -> None:
    """Change stored weights; None takes one away."""
    weights = load_file(folder / "model.safetensors") | changes
    kept = {name: value for name, value in weights.items() if value is not None}
    save_file(kept, folder / "model.safetensors")


def refusal(folder: Path | str, **settings: object) -> str:
    with pytest.raises(ValueError, match=rf"^model\.path={folder}: ") as refused:
        load(str(folder), **settings)  # type: ignore[arg-type]
    assert "\n" not in str(refused.value)
    return str(refused.value).removeprefix(f"model.path={folder}: ")


@torch.no_grad()
def test_golden_logits():
    policy = load(str(LLADA))
    everywhere = torch.ones_like(GOLDEN["input_ids"]) > 0
    logits = policy(GOLDEN["input_ids"], everywhere, everywhere)
    difference = (logits.view_as(GOLDEN["logits"]) - GOLDEN["logits"]).abs().max()
    assert difference <= 1e-6
    assert type(policy.backbone) is LlamaForCausalLM


def test_facts_come_from_the_checkpoint():
    facts = load(str(LLADA)).facts
    assert (facts.mask_token_id, facts.end_token_ids, facts.pad_token_id) == (95, (1,), 0)
    assert (facts.attention, facts.block_length, facts.shift_logits) == (
        "bidirectional",
        None,
        False,
    )
    names = dict(load(str(LLADA)).backbone.named_modules())
    assert all(any(n.endswith(f".{target}") for n in names) for target in facts.lora_targets)
    assert facts.lora_targets == PROJECTIONS


def test_prompts_stand_in_the_chat_template_and_are_padded_on_the_left():
    policy = load(str(LLADA))
    prompts = rendered(policy, [Prompt(text, "t", "k") for text in ("ab", "abcd")])
    ids, mask = policy.encode([prompt.text for prompt in prompts])
    one, two = ([2 + ord(letter) - 32 for letter in f"u:{text} a:"] for text in ("ab", "abcd"))
    assert ids.tolist() == [[0, 0, *one], two]
    assert mask.int().tolist() == [[0] * 2 + [1] * 7, [1] * 9]
    plain = load(str(LLADA), chat_template=False)
    assert rendered(plain, prompts[:1]) == prompts[:1]
    talk = [Prompt("", "t", "k", messages=(("user", "ab"),))]  # a conversation is one in any case
    assert rendered(plain, talk)[0].text == prompts[0].text


def test_a_chat_template_has_to_be_there(folder):
    (folder / "chat_template.jinja").unlink()
    assert refusal(folder) == "it ships no chat template: give model.chat_template=false"
    assert load(str(folder), chat_template=False).encode(["a"])[0].tolist() == [[67]]


@pytest.mark.parametrize("shard_size", ["5GB", "200KB"], ids=["one file", "shards"])
def test_saved_in_its_own_format_bit_for_bit(tmp_path, monkeypatch, shard_size):
    monkeypatch.setattr(checkpoints, "SHARD_SIZE", shard_size)
    policy = load(str(LLADA))
    with torch.no_grad():
        policy.backbone.lm_head.weight.add_(1.0)
    policy.save_pretrained(tmp_path)
    files = sorted(tmp_path.glob("*.safetensors"))
    assert len(files) == {"5GB": 1, "200KB": 4}[shard_size]
    saved = {name: value for file in files for name, value in load_file(file).items()}
    original = load_file(LLADA / "model.safetensors")
    original[f"{PREFIX}ff_out.weight"] += 1.0
    assert saved.keys() == original.keys()
    assert all(saved[name].equal(value) for name, value in original.items())
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        assert (tmp_path / name).read_bytes() == (LLADA / name).read_bytes()
    again = load(str(tmp_path))
    for name, value in policy.backbone.state_dict().items():
        assert again.backbone.state_dict()[name].equal(value)
    assert again.facts == policy.facts
    assert again.encode(["1+2"])[0].equal(policy.encode(["1+2"])[0])


def test_saving_over_the_folder_it_came_from(folder):
    policy = load(str(folder))
    policy.save_pretrained(folder)
    assert (
        load_file(folder / "model.safetensors").keys()
        == load_file(LLADA / "model.safetensors").keys()
    )
    again = load(str(folder)).backbone.state_dict()
    assert all(again[name].equal(value) for name, value in policy.backbone.state_dict().items())


def test_published_code_is_carried_along_and_never_run(folder, tmp_path):
    code = "raise SystemExit('run')\n"
    (folder / "modeling_llada.py").write_text(code)
    auto_map = {"AutoModelForCausalLM": "modeling_llada.LLaDAModelLM"}
    configure(folder, auto_map=auto_map)
    configure(
        folder, "tokenizer_config.json", auto_map={"AutoTokenizer": ["modeling_llada.T", None]}
    )
    load(str(folder)).save_pretrained(tmp_path / "saved")
    assert (tmp_path / "saved/modeling_llada.py").read_text() == code
    assert json.loads((tmp_path / "saved/config.json").read_text())["auto_map"] == auto_map


@torch.no_grad()
def test_half_precision_keeps_likelihoods_in_full(tmp_path):
    policy = load(str(LLADA), dtype="bfloat16")
    assert {value.dtype for value in policy.backbone.parameters()} == {torch.bfloat16}
    policy.save_pretrained(tmp_path)
    stored = load_file(tmp_path / "model.safetensors")
    assert stored[NORM].equal(load_file(LLADA / "model.safetensors")[NORM].bfloat16())


@pytest.mark.parametrize("suffix", ["bin", "pt"])
def test_pickled_weights_are_refused(folder, suffix):
    torch.save({}, folder / f"pytorch_model.{suffix}")
    (folder / "model.safetensors").unlink()
    assert refusal(folder).startswith(f"its weights are pickled (pytorch_model.{suffix})")


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({NORM: None}, "1 missing weights for LlamaForCausalLM, model.norm.weight first"),
        ({"x.y": torch.ones(2)}, "1 unused weights for LlamaForCausalLM, x.y first"),
        (
            {f"{PREFIX}blocks.0.q_norm.weight": torch.ones(2)},
            "1 unused weights for LlamaForCausalLM, model.layers.0.q_norm.weight first",
        ),
        ({NORM: torch.ones(63)}, "1 wrongly shaped weights for LlamaForCausalLM, model.norm"),
    ],
)
def test_no_weight_is_invented_or_dropped(folder, changes, text):
    reweigh(folder, **changes)
    assert refusal(folder).startswith(text)


def test_a_missing_shard_is_named(folder):
    index = {"weight_map": {NORM: "model-00001-of-00002.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    assert refusal(folder).startswith("cannot read model-00001-of-00002.safetensors")
    for content in ("{}", "[]", "null", '{"weight_map": {"a": 1, "b": "x"}}', "{"):
        (folder / "model.safetensors.index.json").write_text(content)
        assert refusal(folder) == "model.safetensors.index.json is no index of weights"


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("config.json", "there is no config.json in it"),
        ("model.safetensors", "there is no model.safetensors in it"),
        ("tokenizer.json", "there is no tokenizer.json in it, nor vocab.json with merges.txt"),
    ],
)
def test_a_missing_file_is_named(folder, file, text):
    (folder / file).unlink()
    assert refusal(folder) == text


@pytest.mark.parametrize("file", ["config.json", "model.safetensors", "tokenizer.json"])
def test_a_broken_file_is_refused_in_one_line(folder, file):
    (folder / file).write_bytes(b"{ no such thing")
    assert file.partition(".")[0] in refusal(folder)


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"alibi": True}, "its config.json has alibi=True, LlamaForCausalLM computes alibi=False"),
        ({"d_model": None}, "its config.json has no d_model"),
        (
            {"mask_token_id": 94},
            "two kinds of mask_token_id: config.json says 94, tokenizer says 95",
        ),
        ({"eos_token_id": 96}, "token id 96 is none of the 96 of its embedding"),
        ({"embedding_size": 90}, "its tokenizer has 96 tokens, its embedding 90"),
    ],
)
def test_settings_that_do_not_fit_are_named(folder, settings, text):
    configure(folder, **settings)
    assert refusal(folder).startswith(text)


def test_an_id_that_nobody_states_has_to_be_given(folder):
    for name, setting, value in (
        ("mask_token", "mask_token_id", 95),
        ("pad_token", "pad_token_id", 0),
        ("eos_token", "end_token_ids", [1]),
    ):
        configure(folder, "tokenizer_config.json", **{name: None})
        configure(folder, **{f"{name}_id": None})
        assert f"give model.{setting}=" in refusal(folder)
        assert load(str(folder), **{setting: value}).facts == load(str(LLADA)).facts  # type: ignore[arg-type]
        shutil.copy(LLADA / "config.json", folder / "config.json")
        shutil.copy(LLADA / "tokenizer_config.json", folder / "tokenizer_config.json")


def test_an_id_that_contradicts_the_checkpoint_is_refused():
    assert refusal(LLADA, mask_token_id=94) == "model.mask_token_id=94, but the checkpoint says 95"
    assert refusal(LLADA, end_token_ids=[]).startswith("model.end_token_ids=[]")
    assert load(str(LLADA), end_token_ids=[5, 6]).facts.end_token_ids == (5, 6)


def test_ids_are_asserted_against_what_is_published(folder):
    configure(folder, embedding_size=126464)  # as many rows as LLaDA-8B
    text = "mask_token_id is 95 in its files, but 126336 in the published checkpoints"
    assert refusal(folder).startswith(text)
    assert refusal(folder, mask_token_id=95).startswith("end_token_ids is {1} in its files")


def test_a_hub_id_without_a_network(monkeypatch):
    import huggingface_hub

    def offline(*_: object, **__: object) -> str:
        raise OSError("no route to the hub\nof anything")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", offline)
    text = refusal("GSAI-ML/LLaDA-8B-Instruct")
    assert text.startswith("no such folder here, and not to be had from the Hugging Face hub")
    assert "no route to the hub of anything" in text
    for path in ("nowhere", "./no/where", "../there", "/no/where", "no/such/folder"):
        assert refusal(path) == "there is no such folder"


def test_a_hub_id_is_the_folder_it_was_fetched_into(monkeypatch):
    import huggingface_hub

    monkeypatch.setattr(huggingface_hub, "snapshot_download", lambda *_, **__: str(LLADA))
    assert load("GSAI-ML/tiny").facts == load(str(LLADA)).facts
