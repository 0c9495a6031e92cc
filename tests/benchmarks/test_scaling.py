"""docs/scaling.md has the tables of benchmarks/scaling.py, and those follow presets and code."""

import inspect
from functools import partial
from typing import Any

import pytest
import torch
import yaml
from torch.nn.parallel import DistributedDataParallel

from benchmarks import phases, scaling
from benchmarks.cost import Decoding, rollout_flops, update_flops
from benchmarks.phases import RECIPES, Recipe, block_scored, phase_flops, uniform_scored
from stabledrl import pairing
from stabledrl.functional import masking
from tests.conftest import ROOT

RELEASED, WITH_KL, PLAIN, DIFFU = RECIPES


def preset(name: str) -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load((ROOT / "conf" / f"{name}.yaml").read_text())
    return loaded


def chosen(preset_: dict[str, Any]) -> dict[str, str]:
    """Options by group."""
    return {
        group.removeprefix("override /"): option
        for entry in preset_["defaults"]
        for group, option in entry.items()
    }


@pytest.mark.parametrize("name", scaling.TABLES)
def test_the_document_has_every_table_of_the_command(name):
    assert scaling.TABLES[name]() in (ROOT / "docs/scaling.md").read_text()


def test_the_command_prints_every_table(capsys):
    scaling.main()
    printed = capsys.readouterr().out
    assert all(table() in printed for table in scaling.TABLES.values())


def evaluations(pairs: Any, updates: int) -> tuple[int, int]:
    """Distinct corruptions of the old policy and of updates, which are the reference's."""
    drawn: dict[str, object] = {}
    found = pairs(lambda label: drawn.setdefault(label, object()), updates)
    return len({id(old) for old, _ in found}), len({id(new) for _, new in found})


@pytest.mark.parametrize(
    ("recipe", "name"),
    [(RELEASED, "stabledrl_released"), (PLAIN, "stabledrl"), (DIFFU, "diffu_grpo")],
)
def test_recipes_are_those_of_the_presets(recipe, name):
    settings = preset(f"algorithm/{name}")
    updates = settings.get("rollout", preset("rollout/default"))["inner_updates"]
    assert recipe.updates == updates
    old, new = evaluations(getattr(pairing, settings["masking"]["pairing"]), updates)
    assert recipe.old == old
    assert recipe.reference == (0 if chosen(settings)["kl"] == "none" else new)
    estimator = preset(f"estimator/{chosen(settings)['estimator']}")
    assert recipe.rows == estimator.get("draws", 1)


def test_a_kl_term_scores_the_reference_for_every_update():
    assert WITH_KL.reference == evaluations(pairing.independent, WITH_KL.updates)[1] == 2


def test_masked_positions_are_those_that_are_drawn():
    counted = torch.ones(1, 256, dtype=torch.bool)
    prompt = torch.ones(1, 4, dtype=torch.bool)
    patterns = {
        block_scored(256, 32, 0.15): partial(masking.block_random, block_length=32),
        uniform_scored(256): masking.uniform,
    }
    for expected, pattern in patterns.items():
        generator = torch.Generator().manual_seed(0)
        mask, _ = pattern(counted, prompt, 20_000, generator)
        # of 20,000 draws with a standard deviation of 74 the mean has one of 0.5
        assert mask.sum(-1).float().mean().item() == pytest.approx(expected, abs=2)
    assert uniform_scored(256) == 128.5
    assert block_scored(256, 32, 0.15) == pytest.approx(145.3)


def test_operations_of_a_phase_by_hand():
    recipe = Recipe("", rows=2, scored=10.0, updates=3, old=1, reference=4)
    found = phase_flops(recipe, prompts=5)
    rows = 5 * 16 * 2
    forward = update_flops(phases.SHAPE, rows, 456, rows * 10) / 3
    assert found[0] == rollout_flops(phases.SHAPE, 80, Decoding(200, 256, 32, 128))
    assert found[1] == forward
    assert found[2] == 4 * forward
    assert found[3] == 3 * update_flops(phases.SHAPE, rows, 456, rows * 10, recomputed=True)


def test_whole_groups_can_be_dealt_to_all_processes():
    assert all(prompts % processes == 0 for processes, prompts in scaling.PROMPTS.items())


def test_ddp_copies_gradients_unless_told_otherwise():
    signature = inspect.signature(DistributedDataParallel.__init__)
    assert signature.parameters["gradient_as_bucket_view"].default is False


def test_steps_of_1e_6_do_not_move_most_weights_in_bfloat16():
    """docs/scaling.md warns of it: half the distance to the next number is more than the step."""
    weights = torch.nn.Parameter((0.02 * torch.randn(100_000)).bfloat16())
    before = weights.detach().clone()
    optimizer = torch.optim.AdamW([weights], lr=1e-6, weight_decay=0)
    weights.grad = torch.randn(100_000).bfloat16()
    optimizer.step()
    assert 0 < (weights != before).float().mean() < 0.05
