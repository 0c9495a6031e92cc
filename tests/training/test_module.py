"""One epoch is one phase, accumulation changes no gradient, and what a step logs."""

from dataclasses import replace
from functools import partial

import lightning.pytorch as pl
import pytest
import torch

from stabledrl.estimators.elbo import Elbo
from stabledrl.functional import clipping, normalization
from stabledrl.pairing import independent, paired, shared
from stabledrl.penalty import DivergencePenalty
from stabledrl.training.metrics_file import MetricsFile
from stabledrl.training.module import merge
from stabledrl.training.phases import PhaseDataset
from stabledrl.training.schedule import linear
from tests.training.small_runs import (
    SETTINGS,
    Gradients,
    batches_of,
    module,
    rows,
    trainer,
)

STABLEDRL = {
    "clipping": partial(clipping.unconditional, epsilon=5.0),
    "normalization": normalization.self_normalized,
    "pairing": independent,
}


class Phases(pl.Callback):
    """Remembers of every batch: the epoch, the module's phase, the phase's first prompt."""

    def __init__(self) -> None:
        self.seen: list[tuple[int, int, str]] = []

    def on_train_batch_start(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, batch: object, batch_idx: int
    ) -> None:
        assert pl_module.last_phase is not None
        key = pl_module.last_phase.rollout.prompts[0].key
        self.seen.append((trainer.current_epoch, pl_module.phase, key))


def test_one_epoch_is_one_phase_with_its_own_prompts():
    learner, phases = module(batches_of(2)), Phases()
    trainer(phases, max_epochs=2).fit(learner)
    # two updates in two batches each, then the next four prompts of the stream
    first, second = (learner.collector.task.prompts("train", 0, at, 1)[0].key for at in (0, 4))
    assert phases.seen == [(0, 0, first)] * 4 + [(1, 1, second)] * 4
    assert (learner.phase, learner.global_step) == (2, 8)


def test_a_phase_is_collected_when_iteration_begins_and_only_then():
    learner, calls = module(), []

    def begin():
        calls.append(1)
        return learner.collector(learner.policy, None, 0)

    dataset = PhaseDataset(begin, batches_of(2))
    assert (len(dataset), calls) == (4, [])
    batches = list(dataset)
    assert (len(batches), calls) == (4, [1])
    [first, second] = learner.collector(learner.policy, None, 0).batches
    for whole, parts in ((first, batches[:2]), (second, batches[2:])):
        assert torch.equal(whole.corruption.mask, torch.cat([p.corruption.mask for p in parts], 1))
        assert torch.equal(whole.advantage, torch.cat([p.advantage for p in parts]))
    assert not torch.equal(first.corruption.mask, second.corruption.mask)


def test_a_filtered_group_is_sampled_and_graded_and_then_left_out():
    def every_other(reward: torch.Tensor, solved: torch.Tensor) -> torch.Tensor:
        assert reward.shape == solved.shape == (4, 3)
        return torch.arange(len(reward)) % 2 == 0

    learner = module(group_filter=every_other)
    phase = learner.collector(learner.policy, None, 0)
    assert phase.metrics["train/frac_filtered"] == 0.5
    assert not phase.rollout.reward.isnan().any()  # metrics of the rollout are of all groups
    for batch in phase.batches:
        assert batch.verdict.tolist() == [[True] * 3, [False] * 3] * 2
        assert batch.counted_share == 0.5
        assert batch.advantage[1::2].eq(0).all()
        assert batch.advantage[::2].ne(0).any()
    everything = module()
    phase = everything.collector(everything.policy, None, 0)
    assert phase.metrics["train/frac_filtered"] == 0
    assert all(batch.verdict.all() and batch.counted_share == 1 for batch in phase.batches)


@pytest.mark.parametrize("changes", [{}, STABLEDRL, {"penalty": DivergencePenalty(0.5)}])
def test_accumulation_changes_neither_gradient_nor_masks(changes):
    whole = None
    for accumulation, prompts in ((1, 4), (2, 2), (4, 1)):
        learner, seen = module(batches_of(prompts), **changes), Gradients()
        trainer(seen, accumulate_grad_batches=accumulation).fit(learner)
        assert learner.global_step == len(seen.seen) == 2
        masks = torch.cat(seen.masks, 1)  # both updates, in sample order
        whole = whole or (seen.seen[0], masks)
        assert torch.equal(masks, whole[1])
        scale = whole[0].abs().max()
        assert scale > 1e-3
        torch.testing.assert_close(seen.seen[0], whole[0], rtol=1e-5, atol=float(1e-6 * scale))


@pytest.mark.parametrize("changes", [STABLEDRL, {"penalty": DivergencePenalty(0.5)}])
def test_scoring_a_few_rows_at_a_time_changes_no_gradient(changes):
    found = []
    for rows_together in (None, 5):
        settings = replace(SETTINGS, training_rows=rows_together)
        learner, seen = module(settings, **changes), Gradients()
        trainer(seen).fit(learner)
        found.append(seen.seen[0])
    scale = found[0].abs().max()
    assert scale > 1e-3
    torch.testing.assert_close(found[1], found[0], rtol=1e-5, atol=float(1e-6 * scale))


def test_the_frozen_reference_is_neither_trained_nor_saved(tmp_path):
    learner = module(penalty=DivergencePenalty(0.5))
    before = {name: value.clone() for name, value in learner.policy.state_dict().items()}
    fitter = trainer()
    fitter.fit(learner)
    fitter.save_checkpoint(tmp_path / "x.ckpt")
    assert learner.reference is not None
    for name, value in learner.reference.state_dict().items():
        assert torch.equal(value, before[name])
    assert not all(torch.equal(v, before[n]) for n, v in learner.policy.state_dict().items())
    names = {f"policy.{name}" for name in before}
    assert set(learner.state_dict()) == names
    saved = torch.load(tmp_path / "x.ckpt", weights_only=True)
    assert set(saved["state_dict"]) == names
    assert len(saved["optimizer_states"][0]["state"]) == len(list(learner.policy.parameters()))


@pytest.mark.parametrize(
    "penalty", [DivergencePenalty(), DivergencePenalty(0.5, reference="rollout")]
)
def test_without_need_there_is_no_reference(penalty):
    assert module(penalty=penalty).reference is None


def logged(tmp_path, learner, **settings):
    """Rows of metrics.csv after a fit, numbers as floats."""
    trainer(logger=MetricsFile(str(tmp_path)), **settings).fit(learner)
    return [{name: float(value) for name, value in row.items()} for row in rows(tmp_path)]


def test_the_learning_rate_follows_the_schedule_over_all_steps(tmp_path):
    learner = module(schedule=partial(linear, warmup_steps=1))
    found = logged(tmp_path, learner, max_epochs=2)
    # 0.003 * min(1, (s + 1)/2) * (1 - s/4), s = 0..3
    expected = [0.0015, 0.00225, 0.0015, 0.00075]
    assert [row["train/learning_rate"] for row in found] == pytest.approx(expected)
    assert [row["step"] for row in found] == [0, 1, 2, 3]
    assert [row["phase"] for row in found] == [0, 0, 1, 1]


@pytest.mark.parametrize(
    ("pairing", "accumulation"), [(paired, 1), (shared, 1), (paired, 4), (independent, 1)]
)
def test_noise_is_the_spread_of_the_first_update(tmp_path, pairing, accumulation):
    learner = module(batches_of(4 // accumulation), pairing=pairing)
    first, second = logged(tmp_path, learner, accumulate_grad_batches=accumulation)
    assert first["train/ratio/noise_std"] == first["train/ratio/log_std"]
    if pairing is independent:
        assert first["train/ratio/noise_std"] > 0.1
    else:  # to the last bit: old and new were scored in the same shapes
        assert first["train/ratio/noise_std"] == first["train/ratio/log_max"] == 0
        assert first["train/ratio/mean"] == first["train/ratio/max"] == first["train/ess"] == 1
    assert second["train/ratio/log_std"] > 1e-3  # the weights have moved


def test_what_belongs_to_a_phase_stands_in_its_first_row_only(tmp_path):
    found = logged(tmp_path, module(batches_of(2)), max_epochs=2, accumulate_grad_batches=2)
    phase = {"train/reward", "train/solved", "train/ratio/noise_std", "train/rewards/digits/mean"}
    assert [phase & row.keys() for row in found] == [phase, set(), phase, set()]
    assert found[0].keys() - found[1].keys() > phase
    assert {"train/loss", "train/grad_norm", "phase"} < found[1].keys() < found[0].keys()


def test_where_few_rows_are_written_none_of_a_phase_is_lost(tmp_path):
    every = logged(tmp_path / "1", module(batches_of(1)), max_epochs=2)
    third = logged(tmp_path / "3", module(batches_of(1)), max_epochs=2, log_every_n_steps=3)
    assert [row["step"] for row in third] == [2, 5, 8, 11, 14]  # phases begin with 0 and 8
    every[2] = every[0] | every[2]
    assert third == every[2::3]


def test_drift_from_the_start_is_measured_every_nth_phase_without_a_penalty(tmp_path):
    learner = module(replace(SETTINGS, drift_every=2))
    found = logged(tmp_path, learner, max_epochs=3)
    drift = [row["train/drift/reference"] for row in found if "train/drift/reference" in row]
    assert [row["phase"] for row in found if "train/drift/reference" in row] == [0, 2]
    assert drift[0] == 0  # nothing has been learned yet
    assert drift[1] != 0
    plain = logged(tmp_path / "plain", module(), max_epochs=3)
    numbers = [{k: v for k, v in row.items() if k != "train/drift/reference"} for row in found]
    assert numbers == plain  # measuring it changes nothing


def test_gradient_spikes_are_measured_against_the_norms_before(tmp_path):
    first, second, third, fourth = logged(tmp_path, module(), max_epochs=2)
    norm = [row["train/grad_norm"] for row in (first, second, third, fourth)]
    assert first["train/grad_spike"] == 1
    assert second["train/grad_spike"] == pytest.approx(norm[1] / norm[0])
    assert third["train/grad_spike"] == pytest.approx(norm[2] / ((norm[0] + norm[1]) / 2))
    assert fourth["train/grad_spike"] == pytest.approx(norm[3] / sorted(norm[:3])[1])


def test_the_progress_bar_and_the_summary_still_know_the_phase():
    learner, fitter = module(), trainer()
    fitter.fit(learner)
    assert fitter.callback_metrics["train/reward"] == learner.last_phase.rollout.reward.mean()


def test_validations_are_logged_and_remembered_at_the_updates_made_so_far(tmp_path):
    learner = module()
    found = logged(
        tmp_path, learner, max_epochs=4, check_val_every_n_epoch=2, limit_val_batches=None
    )
    validated = [row for row in found if "val/solved" in row]
    assert [row["step"] for row in validated] == [4, 8]
    assert learner.history == validated


def test_the_gradient_norm_is_logged_before_clipping(tmp_path):
    seen, learner = Gradients(), module()
    file = MetricsFile(str(tmp_path))
    trainer(seen, logger=file, gradient_clip_val=1e-3).fit(learner)
    norms = [float(row["train/grad_norm"]) for row in rows(tmp_path)]
    assert norms == pytest.approx([float(gradient.norm()) for gradient in seen.seen], rel=1e-5)
    assert min(norms) > 1e-3


def test_merging_takes_maxima_of_maxima_sums_of_counts_and_means_otherwise():
    parts = [
        {"train/ratio/max": 1.0, "train/ratio/log_max": -3.0, "guard/clamped_ratios": 2.0},
        {"train/ratio/max": 7.0, "train/ratio/log_max": -2.0, "guard/clamped_ratios": 3.0},
    ]
    losses = [{"train/loss": 1.0, "train/ess": 0.5}, {"train/loss": -4.0, "train/ess": 1.0}]
    tensors = [
        {name: torch.tensor(value) for name, value in (part | loss).items()}
        for part, loss in zip(parts, losses, strict=True)
    ]
    assert {name: float(value) for name, value in merge(tensors).items()} == {
        "train/ratio/max": 7.0,
        "train/ratio/log_max": -2.0,
        "guard/clamped_ratios": 5.0,
        "train/loss": -1.5,
        "train/ess": 0.75,
    }


def test_a_phase_depends_on_its_number_and_the_weights_alone():
    learner = module(estimator=Elbo(draws=1))
    one = learner.collector(learner.policy, None, 3)
    torch.rand(5)
    learner.collector(learner.policy, None, 0)
    again = learner.collector(learner.policy, None, 3)
    other = learner.collector(learner.policy, None, 4)
    assert one.rollout.texts == again.rollout.texts != other.rollout.texts
    for left, right in zip(one.batches, again.batches, strict=True):
        assert torch.equal(left.corruption.mask, right.corruption.mask)
        assert torch.equal(left.old.value, right.old.value)
    assert SETTINGS.inner_updates == len(one.batches)
