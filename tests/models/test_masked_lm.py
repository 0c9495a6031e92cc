"""BERT, RoBERTa and ModernBERT built tiny: loading, padding, positions, and a run on BERT."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import (
    BartConfig,
    BartForConditionalGeneration,
    BertConfig,
    BertForMaskedLM,
    DistilBertConfig,
    DistilBertForMaskedLM,
    ModernBertConfig,
    ModernBertForMaskedLM,
    PreTrainedModel,
    RobertaConfig,
    RobertaForMaskedLM,
)

from stabledrl.errors import UserError
from stabledrl.functional.masking import counted_tokens
from stabledrl.models.masked_lm import load
from stabledrl.models.tiny import character_tokenizer
from stabledrl.samplers.semi_autoregressive import SemiAutoregressive
from stabledrl.types import Sequences
from tests.policies import END, MASK, PAD, VOCABULARY, left_padded

SIZES = {
    "vocab_size": VOCABULARY,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "pad_token_id": PAD,
    "initializer_range": 0.5,
}


def bert() -> PreTrainedModel:
    return BertForMaskedLM(BertConfig(**SIZES, max_position_embeddings=40))


def roberta() -> PreTrainedModel:
    return RobertaForMaskedLM(RobertaConfig(**SIZES, max_position_embeddings=40, eos_token_id=END))


def modernbert() -> PreTrainedModel:
    # the second layer looks two tokens to either side, less than the padding is long
    config = ModernBertConfig(
        **SIZES,
        max_position_embeddings=40,
        local_attention=4,
        global_attn_every_n_layers=2,
        eos_token_id=END,
        bos_token_id=None,
        cls_token_id=None,
        sep_token_id=END,
    )
    return ModernBertForMaskedLM(config)


def distilbert() -> PreTrainedModel:
    config = DistilBertConfig(
        vocab_size=VOCABULARY,
        dim=16,
        n_layers=2,
        n_heads=2,
        hidden_dim=32,
        pad_token_id=PAD,
        max_position_embeddings=40,
        initializer_range=0.5,
    )
    return DistilBertForMaskedLM(config)


FAMILIES = [bert, roberta, modernbert, distilbert]


def saved(folder: Path, family) -> Path:
    family().save_pretrained(folder)
    character_tokenizer().save_pretrained(folder)
    return folder


def refusal(folder: Path) -> str:
    with pytest.raises(ValueError, match=rf"^model\.path={folder}: ") as refused:
        load(str(folder), ["bert.pooler."])
    return str(refused.value).removeprefix(f"model.path={folder}: ")


@torch.no_grad()
@pytest.mark.parametrize("family", FAMILIES)
def test_logits_are_the_models_own_and_padding_changes_nothing(tmp_path, family):
    policy = load(str(saved(tmp_path, family)), [])
    facts = policy.facts
    assert (facts.mask_token_id, facts.end_token_ids, facts.pad_token_id) == (MASK, (END,), PAD)
    prompts = [list(range(4, 4 + length)) for length in (3, 7, 12)]
    ids = torch.tensor([[9, 5, 14, END, PAD], [8, 8, 21, 4, 4], [7, END, PAD, PAD, PAD]])
    counted = counted_tokens(ids, (END,))
    hidden = torch.tensor([[1, 0, 1, 1, 1], [1, 1, 1, 1, 1], [0, 1, 1, 1, 1]]) > 0
    together = policy.log_likelihood(Sequences(*left_padded(prompts), ids, counted), hidden)
    for row, prompt in enumerate(prompts):
        text = torch.tensor([prompt + ids[row].masked_fill(hidden[row], MASK).tolist()])
        plain = policy.backbone(input_ids=text).logits[0].log_softmax(-1)[len(prompt) :]
        for place in (hidden[row] & counted[row]).nonzero()[:, 0].tolist():
            expected = plain[place, ids[row, place]]
            torch.testing.assert_close(together[row, place], expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("family", FAMILIES)
def test_every_parameter_gets_a_finite_gradient(tmp_path, family):
    policy = load(str(saved(tmp_path, family)), [])
    ids = torch.full((2, 6), 5)
    whole = Sequences(*left_padded([[4], [4] * 12]), ids, ids > 0)
    policy.log_likelihood(whole, ids > 0).sum().backward()
    for name, parameter in policy.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name


@pytest.mark.parametrize("family", FAMILIES)
def test_saved_and_loaded_bit_for_bit(tmp_path, family):
    policy = load(str(saved(tmp_path, family)), [])
    policy.save_pretrained(tmp_path / "again")
    again = load(str(tmp_path / "again"), [])
    assert again.facts == policy.facts
    for name, value in policy.backbone.state_dict().items():
        assert again.backbone.state_dict()[name].equal(value)
    modules = dict(policy.backbone.named_modules())
    assert policy.facts.lora_targets
    for target in policy.facts.lora_targets:
        assert any(name.endswith(f".{target}") for name in modules)


@torch.no_grad()
def test_batches_are_sampled_as_separate_runs(tmp_path):
    policy = load(str(saved(tmp_path, modernbert)), [])
    prompts = [[5, 6, 7], [8, 9, 10, 11, 4, 4, 20], [15] * 12]
    sampler = SemiAutoregressive(8, 4, 4, 0.0)
    together = sampler(policy, *left_padded(prompts), torch.zeros(3, 4, 2, 4))
    for row, prompt in enumerate(prompts):
        alone = sampler(policy, *left_padded([prompt]), torch.zeros(1, 4, 2, 4))
        assert together.ids[[row]].equal(alone.ids)


@torch.no_grad()
@pytest.mark.parametrize(("family", "reach"), [(bert, 40), (roberta, 39), (modernbert, 40)])
def test_texts_longer_than_the_positions_are_refused(tmp_path, family, reach):
    policy = load(str(saved(tmp_path, family)), [])
    for length in (reach, reach + 1):
        ids, mask = left_padded([[5] * length, [5] * 3])
        if length == reach:
            assert policy(ids, mask, mask).isfinite().all()
        else:
            with pytest.raises(UserError, match=rf"have {length} tokens, more than the model's"):
                policy(ids, mask, mask)


def test_no_weight_is_invented_or_dropped(tmp_path):
    file = saved(tmp_path, bert) / "model.safetensors"
    weights = load_file(file)
    save_file({**weights, "bert.pooler.dense.bias": torch.ones(16)}, file, {"format": "pt"})
    load(str(tmp_path), ["bert.pooler."])
    save_file({**weights, "cls.seq_relationship.bias": torch.ones(2)}, file, {"format": "pt"})
    text = "1 unused weights for BertForMaskedLM, cls.seq_relationship.bias first"
    assert refusal(tmp_path).startswith(text)
    name = "bert.encoder.layer.1.output.dense.bias"
    save_file({**weights, name: torch.ones(2)}, file, {"format": "pt"})
    assert refusal(tmp_path).startswith(f"1 wrongly shaped weights for BertForMaskedLM, {name}")
    save_file({n: w for n, w in weights.items() if n != name}, file, {"format": "pt"})
    assert refusal(tmp_path).startswith(f"1 missing weights for BertForMaskedLM, {name} first")


@pytest.mark.parametrize("family", [bert, roberta, modernbert])
def test_training_draws_nothing(tmp_path, family):
    def dropping() -> PreTrainedModel:
        model = family()
        for key in ("hidden_dropout_prob", "attention_probs_dropout_prob", "attention_dropout"):
            if hasattr(model.config, key):
                setattr(model.config, key, 0.3)
        return type(model)(model.config)

    policy = load(str(saved(tmp_path / "model", dropping)), [])
    sequences = Sequences(
        torch.tensor([[PAD, 5, 6]]),
        torch.tensor([[False, True, True]]),
        torch.tensor([[7, 8, 9]]),
        torch.ones(1, 3, dtype=torch.bool),
    )
    hidden = torch.ones(1, 3, dtype=torch.bool)
    values = [policy.train(mode).log_likelihood(sequences, hidden) for mode in (True, True, False)]
    assert torch.equal(values[0], values[1])
    assert torch.equal(values[0], values[2])
    policy.save_pretrained(tmp_path / "again")
    assert "0.3" in (tmp_path / "again/config.json").read_text()


def test_pickles_remote_code_and_decoders_are_refused(tmp_path):
    file = saved(tmp_path, bert) / "config.json"
    config = file.read_text()
    file.write_text(config.replace('"is_decoder": false', '"is_decoder": true'))
    if '"is_decoder"' not in config:
        file.write_text(config.replace("{", '{"is_decoder": true,', 1))
    assert refusal(tmp_path) == "its config.json has is_decoder=True, which makes it causal"
    code = '{"auto_map": {"AutoModelForMaskedLM": "evil.Model"}, "model_type": "evil"}'
    file.write_text(code)
    (tmp_path / "evil.py").write_text("raise SystemExit('run')")
    assert refusal(tmp_path).startswith("transformers cannot load it as a masked language model: ")
    file.write_text(config)
    (tmp_path / "model.safetensors").rename(tmp_path / "pytorch_model.bin")
    assert refusal(tmp_path).startswith("its weights are pickled (pytorch_model.bin)")


def test_a_model_whose_positions_cannot_be_told_is_refused(tmp_path):
    config = BartConfig(
        vocab_size=VOCABULARY,
        d_model=16,
        encoder_layers=1,
        decoder_layers=1,
        encoder_attention_heads=2,
        decoder_attention_heads=2,
        encoder_ffn_dim=32,
        decoder_ffn_dim=32,
        pad_token_id=PAD,
        eos_token_id=END,
        bos_token_id=PAD,
        decoder_start_token_id=END,
        forced_eos_token_id=None,
    )
    BartForConditionalGeneration(config).save_pretrained(tmp_path)
    character_tokenizer().save_pretrained(tmp_path)
    assert refusal(tmp_path).startswith("BartForConditionalGeneration takes no position_ids")
