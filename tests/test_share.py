"""Dealing out groups and putting them together again."""

import pytest
import torch

from stabledrl.share import WHOLE, Share
from tests.shares import of_all


def test_batches_of_groups_are_dealt_in_turn():
    # 8 groups in batches of 2: the batches 0 1 2 3 go to ranks 0 1 0 1
    first, second = Share(0, 2, batch=2), Share(1, 2, batch=2)
    assert first.groups(8).tolist() == [0, 1, 4, 5]
    assert second.groups(8).tolist() == [2, 3, 6, 7]
    # of groups of 3 samples
    assert second.samples(4, 3).tolist() == [6, 7, 8, 9, 10, 11]
    assert second.members("abcdefgh") == ["c", "d", "g", "h"]


def test_one_process_has_everything_as_it_is():
    items = torch.arange(6)
    assert WHOLE.whole(items, 3) is items
    assert WHOLE.neighbours(items) is items
    assert items[WHOLE.samples(3, 2)].tolist() == [0, 1, 2, 3, 4, 5]
    assert WHOLE.members("ab") == ["a", "b"]
    assert WHOLE.whole_values(["a"], 1) == ["a"]


@pytest.mark.parametrize("count", [12, 5, 2])  # of 3 processes: one or more may get nothing
def test_what_is_dealt_comes_back_in_order(count):
    rows = torch.arange(count * 2 * 4).view(count * 2, 4)  # two rows of a group
    values = [[f"ü{index}", None, float("inf")] for index in range(count * 2)]

    def work(share):
        own = share.samples(count, 2)
        return (
            share.whole(rows[own], count),
            share.whole_values([values[index] for index in own.tolist()], count),
        )

    for tensor, plain in of_all(3, work):
        assert torch.equal(tensor, rows)
        assert plain == values


def test_neighbours_stand_in_order_of_rank():
    def work(share):
        whole = share.neighbours(torch.full((2,), share.rank))
        return whole.tolist(), share.among_neighbours(whole).tolist()

    assert of_all(2, work) == [([0, 0, 1, 1], [0, 0]), ([0, 0, 1, 1], [1, 1])]
