"""Fast-dLLM v2's own files: block-causal and shifted, checked against transformers' Qwen2."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

from stabledrl.models.fast_dllm_v2 import load
from tests.policies import left_padded

BLOCK = 4
WORDS = ["<|endoftext|>", "<|im_end|>", "|<MASK>|", *"abcdefghijklmnopqrstuvwxy"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A random Qwen2 of two layers, with the settings that the published config.json has."""
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=32,
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=64,
        initializer_range=0.5,
        tie_word_embeddings=False,
        bos_token_id=0,
        eos_token_id=1,
    )
    place = tmp_path / "published"
    Qwen2ForCausalLM(config).save_pretrained(place)
    content = json.loads((place / "config.json").read_text())
    content |= {"bd_size": BLOCK, "rope_theta": 1e6, "model_type": "Fast_dLLM_Qwen"}
    content["rope_parameters"] = {"rope_type": "default", "rope_theta": 1e6}
    (place / "config.json").write_text(json.dumps(content))
    words = {word: number for number, word in enumerate(WORDS)}
    PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(WordLevel(words, unk_token="y")),
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        additional_special_tokens=["|<MASK>|"],
    ).save_pretrained(place)
    return place


@torch.no_grad()
def test_logits_are_those_of_qwen2_under_a_mask_by_hand_and_shifted(folder):
    policy = load(str(folder), chat_template=False, mask_token_id=2)
    assert type(policy.backbone) is Qwen2ForCausalLM
    facts = policy.facts
    assert (facts.attention, facts.block_length, facts.shift_logits) == ("block", BLOCK, True)
    assert (facts.mask_token_id, facts.end_token_ids, facts.pad_token_id) == (2, (1,), 0)
    rows = [list(range(5, 15)), list(range(20, 27))]
    ids, mask = left_padded(rows)
    found = policy(ids, mask, mask).split([len(row) for row in rows])
    native = Qwen2ForCausalLM(
        Qwen2Config(
            **{
                **policy.backbone.config.to_dict(),
                "rope_parameters": {"rope_type": "default", "rope_theta": 1e6},
            }
        )
    )
    native.load_state_dict(load_file(folder / "model.safetensors"))
    native.eval()
    for row, logits in zip(rows, found, strict=True):
        length = len(row)
        # additive, entry by entry: nothing where key is of the query's block or one before it
        seen = torch.full((1, 1, length, length), float("-inf"))
        for query in range(length):
            for key in range(length):
                if key // BLOCK <= query // BLOCK:
                    seen[0, 0, query, key] = 0.0
        raw = native(input_ids=torch.tensor([row]), attention_mask=seen).logits[0]
        expected = [raw[0], *raw[:-1]]  # i is predicted by i - 1, the first by its own
        torch.testing.assert_close(logits, torch.stack(expected), rtol=1e-5, atol=1e-5)


@torch.no_grad()
def test_a_token_sees_its_block_and_nothing_behind_it(folder):
    policy = load(str(folder), chat_template=False, mask_token_id=2)
    ids = torch.arange(5, 17)[None]
    everywhere = ids > 0
    before = policy(ids, everywhere, everywhere)
    after = ids.clone()
    after[0, 7] = 30  # the last token of the second block
    moved = (policy(after, everywhere, everywhere) != before).any(-1)
    # 5 to 8 are predicted by the logits of 4 to 7, which see it; 9 to 11 by those of 8 to 10
    assert moved.tolist() == [False] * 5 + [True] * 7


def test_saved_in_its_own_format_bit_for_bit(folder, tmp_path):
    policy = load(str(folder), chat_template=False, mask_token_id=2)
    saved = tmp_path / "saved"
    policy.save_pretrained(saved)
    before, after = (load_file(place / "model.safetensors") for place in (folder, saved))
    assert before.keys() == after.keys()
    assert all(before[name].equal(value) for name, value in after.items())
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json"):
        assert (saved / name).read_bytes() == (folder / name).read_bytes()
    assert load(str(saved), chat_template=False, mask_token_id=2).facts == policy.facts


def test_what_nobody_states_is_asked_for(folder):
    with pytest.raises(ValueError, match=r"has a mask_token: give model\.mask_token_id=…"):
        load(str(folder), chat_template=False)
    with pytest.raises(ValueError, match=r"model\.block_length=32, but its .* has bd_size=4"):
        load(str(folder), chat_template=False, mask_token_id=2, block_length=32)
    content = json.loads((folder / "config.json").read_text())
    del content["bd_size"]
    (folder / "config.json").write_text(json.dumps(content))
    with pytest.raises(ValueError, match=r"no bd_size: give model\.block_length=… \(pub.*: 32\)"):
        load(str(folder), chat_template=False, mask_token_id=2)
    policy = load(str(folder), chat_template=False, mask_token_id=2, block_length=32)
    assert policy.facts.block_length == 32
