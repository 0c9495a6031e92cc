"""Every yaml of the four groups builds its function, with the numbers it names."""

import itertools
from pathlib import Path

import pytest
import torch
from hydra.utils import instantiate
from omegaconf import OmegaConf

from stabledrl.functional import advantage, clipping, group_filter, normalization

CONF = Path(__file__).parent.parent.parent / "conf"

EXPECTED = {
    "clipping/none": (clipping.none, {}),
    "clipping/uniform": (clipping.uniform, {}),
    "clipping/conditional": (clipping.conditional, {"epsilon_low": 0.2, "epsilon_high": 0.2}),
    "clipping/conditional_dapo": (clipping.conditional, {"epsilon_low": 0.2, "epsilon_high": 0.28}),
    "clipping/dual": (clipping.dual, {"epsilon_low": 0.2, "epsilon_high": 0.2, "cap": 3.0}),
    "clipping/capped_negative": (
        clipping.capped_negative,
        {"epsilon_low": 0.2, "epsilon_high": 0.2},
    ),
    "clipping/unconditional": (clipping.unconditional, {"epsilon": 5.0}),
    "clipping/unconditional_released": (clipping.unconditional, {"epsilon": 4.0}),
    "normalization/group": (normalization.group, {}),
    "normalization/self": (normalization.self_normalized, {}),
    "normalization/batch_self": (normalization.batch_self, {}),
    "normalization/sequence_token_mean": (normalization.sequence_token_mean, {}),
    "normalization/fixed_length": (normalization.fixed_length, {}),
    "normalization/token": (normalization.token, {}),
    "normalization/length_weighted": (normalization.length_weighted, {}),
    "normalization/sum": (normalization.unnormalized, {}),
    "advantage/centered": (advantage.centered, {}),
    "advantage/standardized": (
        advantage.standardized,
        {"epsilon": 1e-4, "sample_standard_deviation": True},
    ),
    "advantage/leave_one_out": (advantage.leave_one_out, {}),
    "advantage/softmax": (advantage.softmax, {"temperature": 1.0}),
    "group_filter/none": (group_filter.none, {}),
    "group_filter/accuracy_range": (group_filter.accuracy_range, {"lowest": 0.2, "highest": 0.8}),
    "group_filter/nonzero_std": (group_filter.nonzero_std, {}),
}
# Other rooms may add variants; each of those builds too.
FILES = [
    f"{group}/{path.stem}"
    for group in ("clipping", "normalization", "advantage", "group_filter")
    for path in sorted((CONF / group).glob("*.yaml"))
]


@pytest.mark.parametrize("name", EXPECTED)
def test_the_yaml_names_this_function_and_these_numbers(name):
    built = instantiate(OmegaConf.load(CONF / f"{name}.yaml"))
    function, numbers = EXPECTED[name]
    assert built.func is function
    assert built.keywords == numbers


@pytest.mark.parametrize("name", FILES)
def test_every_file_builds_something_that_can_be_called(name):
    built = instantiate(OmegaConf.load(CONF / f"{name}.yaml"))
    values = torch.zeros(2, 3)
    arguments = {
        "advantage": (values,),
        "group_filter": (values, values),
        "clipping": (values.unsqueeze(-1), values),
        "normalization": (
            values.unsqueeze(-1),
            torch.ones(2, 3, 1, dtype=torch.bool),
            torch.ones(2, 3, dtype=torch.long),
            4,
        ),
    }[name.split("/")[0]]
    result = built(*arguments)
    assert (result[0] if isinstance(result, tuple) else result).isfinite().all()


@pytest.mark.parametrize("name", FILES)
def test_every_file_says_what_it_is_and_explains_every_key(name):
    lines = (CONF / f"{name}.yaml").read_text().splitlines()
    assert lines[0].startswith("# ")
    for before, line in itertools.pairwise(lines):
        if line and not line.startswith("#"):
            assert before.startswith("# "), line
