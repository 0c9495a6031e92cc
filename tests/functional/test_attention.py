"""Who sees whom: the pictures of the docstrings, and the same predicate read in two ways."""

from __future__ import annotations

import re
import warnings

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.attention.flex_attention import create_mask, flex_attention
from torch.nn.functional import scaled_dot_product_attention

from stabledrl.functional.attention import (
    Columns,
    bidirectional,
    block_causal,
    block_numbers,
    dense,
    flexible,
    positions,
    staircase,
)

LAYOUTS = (bidirectional, block_causal, staircase)


def picture(layout) -> tuple[Columns, torch.Tensor]:
    """The columns and the mask that a layout's docstring draws."""
    rows = re.findall(r"^    +([A-Za-z]) +((?:[#.] ?)+)$", layout.__doc__, re.M)
    names = [name for name, _ in rows]
    assert re.search(r"^ +" + " ".join(names) + "$", layout.__doc__, re.M)  # keys as queries
    mask = torch.tensor([[mark == "#" for mark in marks.split()] for _, marks in rows])
    block = torch.tensor([[ord(name.upper()) for name in names]])
    stream = torch.tensor([int(name.islower()) for name in names])
    return Columns(torch.ones_like(block) > 0, block, stream), mask


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_layout_is_what_its_docstring_draws(layout):
    columns, drawn = picture(layout)
    assert len(drawn) >= 3
    found = dense(layout(columns), columns.real.shape, drawn.device)
    assert torch.equal(found[0, 0], drawn)


def test_without_noisy_copies_the_staircase_is_block_causal():
    columns, _ = picture(block_causal)
    shape, device = columns.real.shape, columns.real.device
    masks = [dense(layout(columns), shape, device) for layout in (block_causal, staircase)]
    assert torch.equal(*masks)


def test_padding_is_seen_by_itself_alone():
    real = torch.tensor([[False, True, True]])
    columns = Columns(real, torch.zeros(1, 3, dtype=torch.long), torch.zeros(3, dtype=torch.long))
    for layout in LAYOUTS:
        found = dense(layout(columns), real.shape, real.device)[0, 0]
        assert found[:, 0].tolist() == [True, False, False]
        assert found[1:, 1:].all()


def test_cached_queries_are_the_last_rows_of_the_mask():
    columns, drawn = picture(block_causal)
    found = dense(block_causal(columns), columns.real.shape, drawn.device, queries=2)
    assert torch.equal(found[0, 0], drawn[2:])


def test_grids_of_blocks():
    # prompt of 3 (one column of padding) and 4 tokens, blocks of 2
    mask = torch.tensor([[0, 1, 1, 1], [1, 1, 1, 1]]) > 0
    assert positions(mask).tolist() == [[0, 0, 1, 2], [0, 1, 2, 3]]
    absolute = block_numbers(mask, 2, 2, "absolute")
    # the prompt's third token shares block 1 with the first token of the answer
    assert absolute[0, 1:].tolist() == [0, 0, 1, 1, 2]
    assert absolute[1].tolist() == [0, 0, 1, 1, 2, 2]
    response = block_numbers(mask, 2, 2, "response")
    assert response[0, 1:].tolist() == [-2, -1, -1, 0, 0]
    assert response[1].tolist() == [-2, -2, -1, -1, 0, 0]


@st.composite
def packed(draw) -> Columns:
    rows, length = draw(st.integers(1, 3)), draw(st.integers(1, 12))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 10**6)))
    real = torch.rand(rows, length, generator=generator) < 0.8
    block = torch.randint(-2, 4, (rows, length), generator=generator)
    return Columns(real, block, torch.randint(0, 3, (length,), generator=generator))


@settings(deadline=None, max_examples=30)
@given(packed(), st.sampled_from(LAYOUTS))
def test_flex_attention_reads_the_same_predicate(columns, layout):
    shape, device = columns.real.shape, columns.real.device
    rows, length = shape
    mask = dense(layout(columns), shape, device)
    blocks = flexible(layout(columns), shape, device)
    assert torch.equal(create_mask(blocks.mask_mod, rows, 1, length, length, "cpu"), mask)
    generator = torch.Generator().manual_seed(0)
    query, key, value = torch.randn(3, rows, 2, length, 8, generator=generator).double()
    expected = scaled_dot_product_attention(query, key, value, mask)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that it is not compiled
        found = flex_attention(query, key, value, block_mask=blocks)
    torch.testing.assert_close(found, expected)
