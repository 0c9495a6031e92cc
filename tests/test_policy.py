"""The policy: padding, shift, decoding, and the published LLaDA."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from stabledrl.functional.masking import counted_tokens
from stabledrl.policy import Policy
from stabledrl.types import Sequences
from tests.policies import END, LLADA, MASK, PAD, golden_llada, left_padded, tiny_policy

PROMPTS = [list(range(4, 4 + length)) for length in (3, 7, 12)]
COMPLETION = torch.tensor([[9, 5, 14, END, 6, 7], [8, 8, 21, 4, 4, 9], [END, 5, 5, 5, 5, 5]])
HIDDEN = torch.tensor([[1, 0, 1, 1, 1, 1], [0, 1, 1, 0, 1, 1], [1, 1, 1, 1, 1, 1]]) > 0


def sequences_of(prompts: list[list[int]], ids: torch.Tensor, fill: int = PAD) -> Sequences:
    prompt_ids, prompt_mask = left_padded(prompts, fill)
    return Sequences(prompt_ids, prompt_mask, ids, counted_tokens(ids, (END,)))


@pytest.mark.parametrize("shift_logits", [False, True])
@pytest.mark.parametrize("prompts", [PROMPTS, [[], *PROMPTS[1:]]], ids=["3 7 12", "0 7 12"])
@torch.no_grad()
def test_padding_changes_nothing(shift_logits: bool, prompts: list[list[int]]) -> None:
    policy = tiny_policy(shift_logits=shift_logits)
    together = policy.log_likelihood(sequences_of(prompts, COMPLETION), HIDDEN)
    for row, prompt in enumerate(prompts):
        one = Sequences(
            torch.tensor([prompt], dtype=torch.long),
            torch.ones(1, len(prompt), dtype=torch.bool),
            COMPLETION[[row]],
            counted_tokens(COMPLETION[[row]], (END,)),
        )
        alone = policy.log_likelihood(one, HIDDEN[[row]])
        torch.testing.assert_close(together[[row]], alone, rtol=1e-5, atol=1e-7)


@torch.no_grad()
def test_ids_under_the_padding_change_nothing() -> None:
    policy = tiny_policy()
    values = [
        policy.log_likelihood(sequences_of(PROMPTS, COMPLETION, fill), HIDDEN)
        for fill in (PAD, MASK, 17)
    ]
    assert torch.equal(values[0], values[1])
    assert torch.equal(values[0], values[2])


@torch.no_grad()
def test_only_counted_hidden_tokens_are_scored() -> None:
    sequences = sequences_of(PROMPTS, COMPLETION)
    value = tiny_policy().log_likelihood(sequences, HIDDEN)
    scored = HIDDEN & sequences.completion_mask
    assert (value[scored] < 0).all()
    assert (value[~scored] == 0).all()
    # what stands after the end token, or under a hidden place, is not looked at
    other = COMPLETION.clone()
    other[0, 4:] = 3
    assert torch.equal(tiny_policy().log_likelihood(sequences_of(PROMPTS, other), HIDDEN), value)


@torch.no_grad()
def test_hidden_prompt_tokens_are_replaced_and_padding_is_not() -> None:
    policy = tiny_policy()
    sequences = sequences_of(PROMPTS[:2], COMPLETION[:2])
    hide = torch.zeros_like(sequences.prompt_mask)
    hide[0, :] = True  # four of padding, three of prompt
    hide[1, 2] = True
    prompts = [[MASK] * 3, [*PROMPTS[1][:2], MASK, *PROMPTS[1][3:]]]
    expected = policy.log_likelihood(sequences_of(prompts, COMPLETION[:2]), HIDDEN[:2])
    assert torch.equal(policy.log_likelihood(sequences, HIDDEN[:2], hide), expected)


@torch.no_grad()
def test_logits_are_those_of_the_backbone_under_full_attention() -> None:
    policy = tiny_policy()
    ids = torch.tensor([[5, 6, MASK, 8], [MASK, 9, 9, 4]])
    everything = torch.ones(2, 1, 4, 4, dtype=torch.bool)
    logits = policy.backbone(input_ids=ids, attention_mask=everything).logits
    selection = torch.tensor([[0, 1, 1, 0], [1, 0, 0, 1]]) > 0
    selected = policy(ids, torch.ones(2, 4, dtype=torch.bool), selection)
    torch.testing.assert_close(selected, logits[selection])
    # a later token moves an earlier prediction: nothing is causal here
    ids[0, 3] = 20
    changed = policy(ids, torch.ones(2, 4, dtype=torch.bool), selection)
    assert (changed[0] - selected[0]).abs().max() > 1e-3


@torch.no_grad()
def test_shifted_logits_come_from_the_position_before() -> None:
    aligned, shifted = tiny_policy(), tiny_policy(shift_logits=True)
    ids = torch.tensor([[5, 6, MASK, 8, MASK]])
    everywhere = torch.ones(1, 5, dtype=torch.bool)
    plain = aligned(ids, everywhere, everywhere)
    torch.testing.assert_close(shifted(ids, everywhere, everywhere), plain[[0, 0, 1, 2, 3]])


@torch.no_grad()
def test_golden_logits_of_llada() -> None:
    golden = load_file(LLADA / "golden.safetensors")
    ids = golden["input_ids"]
    everywhere = torch.ones_like(ids) > 0
    logits = golden_llada()(ids, everywhere, everywhere).view_as(golden["logits"])
    torch.testing.assert_close(logits, golden["logits"], rtol=0, atol=1e-6)


def test_attention_that_would_misread_the_mask_is_refused() -> None:
    policy = tiny_policy()
    policy.backbone.set_attn_implementation("eager")
    with pytest.raises(ValueError, match="needs sdpa attention, not 'eager'"):
        Policy(policy.backbone, policy.tokenizer, policy.facts)


def test_prompts_are_padded_on_the_left() -> None:
    ids, mask = tiny_policy().encode(["12", "3+4="])
    one, two, three, plus, four, equals = 5, 6, 7, 14, 8, 20
    assert ids.tolist() == [[PAD, PAD, one, two], [three, plus, four, equals]]
    assert mask.int().tolist() == [[0, 0, 1, 1], [1, 1, 1, 1]]


@pytest.mark.parametrize(
    ("ids", "text"),
    [
        ([5, 6, END, 7, 8], "12"),
        ([END] * 5, ""),
        ([5, 6, 7, 8, 9], "12345"),
        ([5, END, 6, END, PAD], "1"),
    ],
)
def test_text_ends_before_the_first_end_token(ids: list[int], text: str) -> None:
    row = torch.tensor([ids])
    assert tiny_policy().decode(row, counted_tokens(row, (END,))) == [text]


def test_text_without_end_tokens() -> None:
    policy = golden_llada(end_token_ids=())
    row = torch.tensor([[2 + ord("a") - 32, 2 + ord("b") - 32]])
    assert policy.decode(row, counted_tokens(row, ())) == ["ab"]


@torch.no_grad()
def test_what_is_saved_loads_as_an_ordinary_model(tmp_path: Path) -> None:
    policy = tiny_policy()
    policy.save_pretrained(tmp_path)
    backbone = AutoModelForCausalLM.from_pretrained(tmp_path)
    again = Policy(backbone, AutoTokenizer.from_pretrained(tmp_path), policy.facts)
    sequences = sequences_of(PROMPTS, COMPLETION)
    value = policy.log_likelihood(sequences, HIDDEN)
    assert torch.equal(again.log_likelihood(sequences, HIDDEN), value)
    assert again.encode(["1+2"])[0].tolist() == policy.encode(["1+2"])[0].tolist()


@pytest.mark.parametrize("autocast", [False, True], ids=["weights", "autocast"])
@torch.no_grad()
def test_log_likelihoods_of_bfloat16_logits_are_float32(autocast: bool) -> None:
    policy = tiny_policy() if autocast else tiny_policy().to(torch.bfloat16)
    sequences = sequences_of(PROMPTS, COMPLETION)
    ids = torch.cat([sequences.prompt_ids, COMPLETION.masked_fill(HIDDEN, MASK)], dim=1)
    seen = torch.cat([sequences.prompt_mask, torch.ones_like(HIDDEN)], dim=1)
    scored = HIDDEN & sequences.completion_mask
    chosen = torch.cat([torch.zeros_like(sequences.prompt_mask), scored], dim=1)
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        value = policy.log_likelihood(sequences, HIDDEN)
        logits = policy(ids, seen, chosen)
    assert logits.dtype == torch.bfloat16
    assert value.dtype == torch.float32
    # log Σ exp by hand, in float64, of the bfloat16 numbers
    wide = logits.double()
    expected = wide.gather(1, COMPLETION[scored][:, None])[:, 0] - wide.exp().sum(-1).log()
    torch.testing.assert_close(value[scored].double(), expected, rtol=1e-5, atol=1e-5)
    assert not torch.allclose(value[scored], value[scored].bfloat16().float(), rtol=0, atol=1e-4)
