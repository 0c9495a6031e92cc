"""Every clipping × every normalization on one 2×3 example worked by hand.

ρ =  ½  1  2 | 4  ¼  –      A = −1  0  +1 | −1  +1  –      |y| = 2  3  4 | 1  5  7
The last member has no verdict: it has an absurd ratio and must leave w, Z and G. R = 8, N = 2.
"""

import math
from functools import partial

import pytest
import torch

from stabledrl.functional import clipping, normalization

RATIO = [[0.5, 1.0, 2.0], [4.0, 0.25, math.nan]]
ADVANTAGE = torch.tensor([[-1.0, 0.0, 1.0], [-1.0, 1.0, 0.0]])
LENGTH = torch.tensor([[2, 3, 4], [1, 5, 7]])
MASK = torch.tensor([[True, True, True], [True, True, False]]).unsqueeze(-1)

# clipping: weights and keep flags of the five members that count
CLIPPINGS = {
    "none": (clipping.none, [0.5, 1, 2, 4, 0.25], [1, 1, 1, 1, 1]),
    "uniform": (clipping.uniform, [1, 1, 1, 1, 1], [1, 1, 1, 1, 1]),
    # dropped: A<0 with ½ < 0.8; A>0 with 2 > 1.2. Kept: A<0 with 4 (bypass), A>0 with ¼.
    "conditional": (
        partial(clipping.conditional, epsilon_low=0.2, epsilon_high=0.2),
        [0.5, 1, 2, 4, 0.25],
        [0, 1, 0, 1, 1],
    ),
    # a high bound of 2.5 lets A>0 with ρ = 2 through, a low one of 0.4 lets A<0 with ½ through
    "conditional_wide": (
        partial(clipping.conditional, epsilon_low=0.6, epsilon_high=1.5),
        [0.5, 1, 2, 4, 0.25],
        [1, 1, 1, 1, 1],
    ),
    # as conditional, and 4 > 3 with A<0
    "dual": (partial(clipping.dual, cap=3.0), [0.5, 1, 2, 4, 0.25], [0, 1, 0, 0, 1]),
    "dual_far": (partial(clipping.dual, cap=4.5), [0.5, 1, 2, 4, 0.25], [0, 1, 0, 1, 1]),
    # the negative of weight 4 weighs 1.2; the positive of weight 2 is untouched
    "capped_negative": (clipping.capped_negative, [0.5, 1, 2, 1.2, 0.25], [0, 1, 0, 1, 1]),
    # clip to [0.5, 1.5]
    "unconditional": (
        partial(clipping.unconditional, epsilon=0.5),
        [0.5, 1, 1.5, 1.5, 0.5],
        [1, 1, 1, 1, 1],
    ),
    # clip to [0, 3]: 1 − 2 < 0, so there is no lower bound
    "unconditional_wide": (
        partial(clipping.unconditional, epsilon=2.0),
        [0.5, 1, 2, 3, 0.25],
        [1, 1, 1, 1, 1],
    ),
}
# sums of the weights above: group 0, group 1
SUMS = {
    "none": (3.5, 4.25),
    "uniform": (3, 2),
    "conditional": (3.5, 4.25),
    "conditional_wide": (3.5, 4.25),
    "dual": (3.5, 4.25),
    "dual_far": (3.5, 4.25),
    "capped_negative": (3.5, 1.45),
    "unconditional": (3, 2),
    "unconditional_wide": (3.5, 3.25),
}
# normalization: Z of the five members; the tokens that count are 2+3+4+1+5 = 15, halved 7.5
NORMALIZATIONS = {
    "group": (normalization.group, lambda first, second: [3, 3, 3, 2, 2]),
    "self": (
        normalization.self_normalized,
        lambda first, second: [first, first, first, second, second],
    ),
    "batch_self": (normalization.batch_self, lambda first, second: [(first + second) / 2] * 5),
    # G·|y|: 3·2, 3·3, 3·4, 2·1, 2·5
    "sequence_token_mean": (
        normalization.sequence_token_mean,
        lambda first, second: [6, 9, 12, 2, 10],
    ),
    # 3·8 and 2·8
    "fixed_length": (normalization.fixed_length, lambda first, second: [24, 24, 24, 16, 16]),
    "token": (normalization.token, lambda first, second: [7.5] * 5),
    # 7.5/2, 7.5/3, 7.5/4, 7.5/1, 7.5/5
    "length_weighted": (
        normalization.length_weighted,
        lambda first, second: [3.75, 2.5, 1.875, 7.5, 1.5],
    ),
    "sum": (normalization.unnormalized, lambda first, second: [1] * 5),
}


@pytest.mark.parametrize("norm", NORMALIZATIONS)
@pytest.mark.parametrize("clip", CLIPPINGS)
def test_coefficients(clip, norm):
    function, weights, keeps = CLIPPINGS[clip]
    normalize, denominators = NORMALIZATIONS[norm]
    log_weight, keep = function(torch.tensor(RATIO).log().unsqueeze(-1), ADVANTAGE)
    assert keep[MASK].int().tolist() == keeps
    torch.testing.assert_close(log_weight[MASK].exp(), torch.tensor(weights).float())
    result = normalize(log_weight, MASK, LENGTH, 8)
    expected = [weight / z for weight, z in zip(weights, denominators(*SUMS[clip]), strict=True)]
    torch.testing.assert_close(result[MASK], torch.tensor(expected).float())
    assert result[1, 2, 0] == 0
