"""Every estimator of conf/ trains a phase, at every ratio level that it has values for."""

import pytest

from stabledrl.config import validate
from stabledrl.errors import ConfigurationError
from stabledrl.jobs.train import train
from tests.conftest import ROOT
from tests.training.small_runs import rows, small

ESTIMATORS = sorted(path.stem for path in (ROOT / "conf/estimator").glob("*.yaml"))
WITH_TOKEN_VALUES = {"coupled_token", "mean_field", "trajectory"}


def trained(directory, *overrides):
    """The first update of a phase of two."""
    train(small(directory, *overrides))
    updates = [row for row in rows(directory) if "train/loss" in row]
    assert len(updates) == 2
    assert float(updates[0]["train/grad_norm"]) > 0
    return updates[0]


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_a_phase_with_paired_masks_begins_without_noise(tmp_path, estimator):
    first = trained(tmp_path, f"estimator={estimator}", "masking.pairing=paired")
    assert float(first["train/ratio/noise_std"]) == 0
    assert float(first["train/ess"]) == pytest.approx(1)


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_ratios_of_tokens_train_or_are_refused(tmp_path, estimator):
    chosen = (f"estimator={estimator}", "ratio=token", "normalization=token")
    if estimator in WITH_TOKEN_VALUES:
        first = trained(tmp_path, *chosen, "masking.pairing=paired", "clipping=conditional")
        assert float(first["train/ratio/mean"]) == 1
        # with w = 1 everywhere the weights of a group are its share of all tokens, 4 groups
        assert float(first["train/weights/sum"]) == pytest.approx(1)
    else:
        with pytest.raises(ConfigurationError, match="needs an estimator with token values"):
            validate(small(tmp_path, *chosen))
