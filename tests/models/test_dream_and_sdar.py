"""Checkpoints in Qwen's classes: golden logits, shift, blocks, and the way back."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from stabledrl.errors import UserError
from stabledrl.functional.attention import Columns, block_causal, dense
from stabledrl.functional.masking import counted_tokens
from stabledrl.models import dream, fast_dllm_v2, llada, sdar
from stabledrl.models.qwen_mdlm import load_qwen2, load_qwen3
from stabledrl.samplers.semi_autoregressive import SemiAutoregressive
from stabledrl.types import Sequences
from tests.policies import left_padded

GOLDEN = Path(__file__).parents[1] / "golden"
DREAM, SDAR = GOLDEN / "dream", GOLDEN / "sdar"


def configured(tmp_path: Path, origin: Path, **settings: object) -> Path:
    """A copy of a checkpoint with other settings; None takes one away."""
    for file in origin.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    content = json.loads((origin / "config.json").read_text()) | settings
    kept = {key: value for key, value in content.items() if value is not None}
    (tmp_path / "config.json").write_text(json.dumps(kept))
    return tmp_path


@torch.no_grad()
def test_golden_logits_of_dream_are_shifted_by_the_policy():
    golden = load_file(DREAM / "golden.safetensors")
    policy = dream.load(str(DREAM))
    everywhere = torch.ones_like(golden["input_ids"]) > 0
    logits = policy(golden["input_ids"], everywhere, everywhere).view_as(golden["logits"])
    raw = golden["logits"]
    assert (logits[:, 1:] - raw[:, :-1]).abs().max() <= 1e-6
    assert (logits[:, 0] - raw[:, 0]).abs().max() <= 1e-6


@torch.no_grad()
@pytest.mark.parametrize("loaded", [dream, sdar], ids=["dream", "sdar"])
def test_saved_in_its_own_format_bit_for_bit(tmp_path, loaded):
    origin = GOLDEN / loaded.__name__.rpartition(".")[2]
    policy = loaded.load(str(origin))
    policy.save_pretrained(tmp_path)
    saved, original = (load_file(place / "model.safetensors") for place in (tmp_path, origin))
    assert saved.keys() == original.keys()
    assert all(saved[name].equal(value) for name, value in original.items())
    assert (tmp_path / "config.json").read_bytes() == (origin / "config.json").read_bytes()
    assert loaded.load(str(tmp_path)).facts == policy.facts
    assert (policy.facts.mask_token_id, policy.facts.end_token_ids) == (95, (1,))
    assert policy.facts.pad_token_id == 0


@torch.no_grad()
def test_padding_changes_no_likelihood_of_dream():
    policy = dream.load(str(DREAM), chat_template=False)
    prompts = [list(range(20, 20 + length)) for length in (3, 7, 12)]
    ids = torch.tensor([[30, 40, 50, 1, 0], [60, 61, 62, 63, 64], [70, 71, 1, 0, 0]])
    hidden = torch.tensor([[1, 0, 1, 1, 1], [1, 1, 1, 1, 1], [0, 1, 1, 1, 1]]) > 0
    whole = Sequences(*left_padded(prompts), ids, counted_tokens(ids, (1,)))
    together = policy.log_likelihood(whole, hidden)
    for row, prompt in enumerate(prompts):
        one = Sequences(*left_padded([prompt]), ids[[row]], counted_tokens(ids[[row]], (1,)))
        alone = policy.log_likelihood(one, hidden[[row]])
        torch.testing.assert_close(together[[row]], alone, rtol=1e-5, atol=1e-6)
        # by hand: the logits before each masked token, in one row without padding
        text = torch.tensor([prompt + ids[row].masked_fill(hidden[row], 95).tolist()])
        seen = torch.ones(1, 1, len(text[0]), len(text[0]), dtype=torch.bool)
        raw = policy.backbone(input_ids=text, attention_mask=seen).logits[0].log_softmax(-1)
        for place in (hidden[row] & whole.completion_mask[row]).nonzero()[:, 0].tolist():
            expected = raw[len(prompt) + place - 1, ids[row, place]]
            torch.testing.assert_close(alone[0, place], expected, rtol=1e-5, atol=1e-6)


@torch.no_grad()
def test_golden_logits_of_sdar():
    golden = load_file(SDAR / "golden.safetensors")
    policy = sdar.load(str(SDAR))
    ids, seen = golden["input_ids"], golden["attention_mask"]
    logits = policy.backbone(input_ids=ids, attention_mask=seen).logits
    assert (logits - golden["logits"]).abs().max() <= 1e-6
    everywhere = torch.ones_like(ids) > 0
    position = torch.arange(ids.shape[1]).expand_as(ids)
    columns = Columns(everywhere, position // 4, torch.zeros_like(position[0]))
    assert dense(block_causal(columns), ids.shape, ids.device).equal(seen)
    own = policy(ids, everywhere, everywhere).view_as(logits)
    assert (own - golden["logits"]).abs().max() <= 1e-6
    assert (policy.facts.attention, policy.facts.block_length) == ("block", 4)


@torch.no_grad()
def test_blocks_are_counted_from_the_first_real_token():
    policy = sdar.load(str(SDAR))
    rows = [list(range(20, 20 + length)) for length in (6, 9)]
    ids, mask = left_padded(rows)
    together = policy(ids, mask, mask)
    alone = [policy(*left_padded([row]), torch.ones(1, len(row)) > 0) for row in rows]
    torch.testing.assert_close(together, torch.cat(alone), rtol=1e-5, atol=1e-5)


def test_the_decoder_of_whole_completions_is_not_for_block_causal_models():
    policy = sdar.load(str(SDAR))
    ids = torch.full((1, 4), 20)
    sampler = SemiAutoregressive(4, 4, 4, 0.0)
    line = r"the model is block-causal \(blocks of 4\): take sampler=block"
    with pytest.raises(UserError, match=line):
        sampler(policy, ids, ids > 0, sampler.draw(1, torch.Generator()))


def test_a_block_length_is_stated_once(tmp_path):
    with pytest.raises(ValueError, match=r"model\.block_length=8, but its config.json has block_s"):
        sdar.load(str(SDAR), block_length=8)
    folder = configured(tmp_path, SDAR, block_size=None)
    with pytest.raises(ValueError, match=r"json has no block_size: give model\.block_length=…"):
        sdar.load(str(folder))
    assert sdar.load(str(folder), block_length=8).facts.block_length == 8


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"use_sliding_window": True}, "has use_sliding_window=True, Qwen2ForCausalLM computes"),
        ({"rope_scaling": {"type": "yarn"}}, "has rope_scaling="),
        ({"rope_theta": None}, "its config.json has no rope_theta"),
    ],
)
def test_settings_that_change_the_model_are_refused(tmp_path, settings, text):
    with pytest.raises(ValueError, match=text):
        dream.load(str(configured(tmp_path, DREAM, **settings)))


@pytest.mark.parametrize(
    ("load", "origin", "right"),
    [
        (load_qwen3, SDAR, "model_type=sdar: take model=sdar_8b"),
        (load_qwen2, DREAM, "model_type=Dream: take model=dream_7b"),
        (fast_dllm_v2.load, DREAM, "model_type=Dream: take model=dream_7b"),
        (dream.load, SDAR, "model_type=sdar: take model=sdar_8b"),
        (sdar.load, DREAM, "model_type=Dream: take model=dream_7b"),
        (sdar.load, GOLDEN / "llada", "model_type=llada: take model=llada_8b"),
        (llada.load, SDAR, "model_type=sdar: take model=sdar_8b"),
    ],
)
def test_a_checkpoint_of_another_family_is_refused(load, origin, right):
    """Its names of parameters may be the same: only its kind says that its logits are others."""
    with pytest.raises(ValueError, match=re.escape(right)):
        load(str(origin))


def test_what_dllm_hub_made_of_other_models_is_bidirectional_and_aligned(tmp_path):
    folder = configured(tmp_path, SDAR, block_size=None, model_type="a2d-qwen3")
    assert load_qwen3(str(folder)).facts.attention == "bidirectional"
    with pytest.raises(ValueError, match="a2d-qwen3: take model=qwen3_mdlm or qwen2_mdlm"):
        sdar.load(str(folder), block_length=4)


@pytest.mark.parametrize("key", ["block_size", "bd_size"])
def test_bidirectional_loaders_refuse_what_writes_block_by_block(tmp_path, key):
    folder = configured(tmp_path, SDAR, **{"block_size": None, "model_type": "qwen3", key: 4})
    with pytest.raises(ValueError, match=f"has {key}=4: it writes block by block"):
        load_qwen3(str(folder))


def test_dream_was_trained_on_2048_tokens(tmp_path):
    folder = configured(tmp_path, DREAM, max_position_embeddings=131072)
    assert dream.load(str(folder)).context_length == 2048
    assert dream.load(str(configured(tmp_path, DREAM))).context_length == 128


def test_tied_embeddings_need_no_output_weights(tmp_path):
    folder = configured(tmp_path, SDAR, tie_word_embeddings=True)
    weights = load_file(folder / "model.safetensors")
    del weights["lm_head.weight"]
    save_file(weights, folder / "model.safetensors")
    policy = sdar.load(str(folder))
    backbone = policy.backbone
    assert backbone.get_output_embeddings().weight is backbone.get_input_embeddings().weight
    policy.save_pretrained(tmp_path / "saved")
    assert load_file(tmp_path / "saved/model.safetensors").keys() == weights.keys()
    (folder / "config.json").write_bytes((SDAR / "config.json").read_bytes())
    text = r"1 missing weights for Qwen3ForCausalLM, lm_head\.weight"
    with pytest.raises(ValueError, match=text):
        sdar.load(str(folder))


def test_a_vocabulary_with_merges_is_qwens(tmp_path):
    """Dream ships no tokenizer.json, and a tokenizer class of its own that is not run."""
    folder = configured(tmp_path, DREAM)
    (folder / "tokenizer.json").unlink()
    (folder / "vocab.json").write_text('{"a": 0, "b": 1, "ab": 2}')
    specials = enumerate(["<|endoftext|>", "<|mask|>", "<|im_end|>"], 3)
    (folder / "merges.txt").write_text("#version: 0.2\na b\n")
    settings = {
        "tokenizer_class": "DreamTokenizer",
        "auto_map": {"AutoTokenizer": ["tokenization_dream.DreamTokenizer", None]},
        "eos_token": "<|endoftext|>",
        "pad_token": "<|endoftext|>",
        "mask_token": "<|mask|>",
        "added_tokens_decoder": {
            str(number): {
                "content": text,
                "special": True,
                "lstrip": False,
                "rstrip": False,
                "single_word": False,
                "normalized": False,
            }
            for number, text in specials
        },
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    configured_ids = {"mask_token_id": 4, "pad_token_id": 3, "eos_token_id": 3}
    content = json.loads((folder / "config.json").read_text()) | configured_ids
    (folder / "config.json").write_text(json.dumps(content))
    policy = dream.load(str(folder), chat_template=False)
    assert policy.encode(["abba"])[0].tolist() == [[2, 1, 0]]
    assert policy.facts == replace(
        policy.facts, mask_token_id=4, end_token_ids=(3, 5), pad_token_id=3
    )


@torch.no_grad()
@pytest.mark.parametrize(("load", "origin"), [(load_qwen3, SDAR), (load_qwen2, DREAM)])
def test_the_same_weights_without_shift_and_blocks(load, origin, tmp_path):
    golden = load_file(origin / "golden.safetensors")
    place = tmp_path / "of_no_family"
    place.mkdir()
    policy = load(str(configured(place, origin, model_type="qwen", block_size=None)))
    assert (policy.facts.attention, policy.facts.shift_logits) == ("bidirectional", False)
    ids = golden["input_ids"]
    everywhere = torch.ones_like(ids) > 0
    logits = policy(ids, everywhere, everywhere).view_as(golden["logits"])
    # Dream's published logits are not yet shifted; SDAR's are those of other attention
    assert ((logits - golden["logits"]).abs().max() <= 1e-6) == (origin == DREAM)
    seen = torch.ones(len(ids), 1, ids.shape[1], ids.shape[1]) > 0
    plain = policy.backbone(input_ids=ids, attention_mask=seen).logits
    torch.testing.assert_close(logits, plain)
    policy.save_pretrained(tmp_path)
    saved, original = (load_file(place / "model.safetensors") for place in (tmp_path, origin))
    assert all(saved[name].equal(value) for name, value in original.items())
