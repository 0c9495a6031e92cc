"""The configuration is refused before anything is built, and every fault is named at once."""

import copy
from pathlib import Path

import pytest
import yaml
from hydra import compose, initialize_config_dir
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from stabledrl.config import (
    build,
    print_config,
    register_resolvers,
    validate,
)
from stabledrl.errors import ConfigurationError, UserError, did_you_mean
from stabledrl.explanations import explain

register_resolvers()


@pytest.fixture
def composed(house: Path):
    """Compose the fake house with overrides."""

    def with_overrides(*overrides: str) -> DictConfig:
        with initialize_config_dir(str(house), version_base="1.3"):
            return compose("config", list(overrides))

    return with_overrides


@pytest.fixture(scope="module")
def base(shared_house: Path) -> DictConfig:
    """The fake house, composed once."""
    with initialize_config_dir(str(shared_house), version_base="1.3"):
        return compose("config")


@pytest.fixture
def changed(base: DictConfig, shared_house: Path):
    """The base with changes as on the command line, without the second that composing takes."""

    def by(*overrides: str) -> DictConfig:
        cfg = copy.deepcopy(base)
        OmegaConf.set_struct(cfg, False)
        for override in overrides:
            key, _, text = override.lstrip("+").partition("=")
            option = shared_house / key / f"{text}.yaml"
            if override.startswith("~"):
                parent, _, leaf = key[1:].rpartition(".")
                del (OmegaConf.select(cfg, parent) if parent else cfg)[leaf]
            elif option.exists():
                cfg[key] = OmegaConf.load(option)[key]
            else:
                OmegaConf.update(cfg, key, yaml.safe_load(text), force_add=True, merge=False)
        return cfg

    return by


def faults_of(cfg: DictConfig) -> list[str]:
    try:
        validate(cfg)
    except ConfigurationError as error:
        return error.faults
    return []


@pytest.fixture
def faults(changed):
    """Faults of the fake house with changes."""
    return lambda *overrides: faults_of(changed(*overrides))


def test_the_house_as_it_stands_is_valid(faults):
    assert faults() == []


def test_a_switch_by_hand_wins_over_the_preset(composed):
    assert composed("algorithm=grpo").clipping.epsilon == 0.2
    assert composed("algorithm=grpo", "clipping=unconditional").clipping.epsilon == 5.0
    assert composed("clipping=unconditional", "algorithm=grpo").clipping.epsilon == 5.0


def test_an_experiment_chooses_an_algorithm_and_wins_over_it(composed, write):
    write(
        "experiment/x.yaml",
        "# @package _global_\ndefaults:\n  - override /algorithm: grpo\n"
        "  - override /normalization: batch_self\nseed: 7\n",
    )
    cfg = composed("experiment=x")
    assert cfg.seed == 7
    assert cfg.clipping.epsilon == 0.2
    assert cfg.normalization._target_ == "tests.fake_components.normalize_step"
    assert composed("experiment=x", "seed=1", "clipping=unconditional").clipping.epsilon == 5.0


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        # keys nobody knows: in a component, in a plain group, at the top
        (["+clipping.epsilonn=1"], ["clipping.epsilonn: ", "did you mean 'epsilon'"]),
        (["+rollout.group_sise=4"], ["rollout.group_sise: unknown key; did you mean 'group_size'"]),
        (["+rolout.group_size=4"], ["rolout: unknown key; did you mean 'rollout'"]),
        (["+foo=1"], ["foo: unknown key (known: acceleration, "]),
        (["+job.fail_att=1"], ["job.fail_att: ", "did you mean 'fail_at'"]),
        (["+callbacks.printing={_target_: tests.fake_components.Elbo, dras: 2}"], ["'draws'"]),
        # keys that are missing
        (["~task.name"], ["task.name: missing, tests.fake_components.Task requires it"]),
        (["~rollout.group_size"], ["rollout.group_size: missing"]),
        (["~clipping"], ["clipping: missing"]),
        (["task.name=???"], ["task.name: missing: give it a value"]),
        (["task.name=${nowhere}"], ["task.name: Interpolation key 'nowhere' not found"]),
        # values
        (["clipping.epsilon=-1"], ["clipping.epsilon=-1: should be greater than 0"]),
        (["clipping.epsilon=abc"], ["clipping.epsilon='abc': should be a valid number"]),
        (["sampler.block_length=0"], ["sampler.block_length=0: should be greater than 0"]),
        (["+sampler.remasking=lo"], ["should be 'low_confidence' or 'random'"]),
        (["+sampler.temperature=6"], ["sampler: temperature above 5 is noise"]),
        (["+task.sizes=[1,x]"], ["task.sizes[1]='x': should be a valid integer"]),
        (["trainer.accumulate_grad_batches='2'"], ["should be of type int"]),
        (["trainer.accumulate_grad_batches=true"], ["should be of type int"]),
        (["rollout.inner_updates=0"], ["rollout.inner_updates: should be greater than 0, not 0"]),
        (["rollout.group_size=8.0"], ["rollout.group_size: should be a valid integer, not 8.0"]),
        (["rollout.group_size='8'"], ["rollout.group_size: should be a valid integer, not '8'"]),
        (["rollout.group_size=true"], ["rollout.group_size: should be a valid integer, not True"]),
        (["extras.print_config=1"], ["extras.print_config: should be a valid boolean, not 1"]),
        (["extras.threads=1.0"], ["extras.threads: should be a valid integer, not 1.0"]),
        (["seed=1.0"], ["seed: should be a valid integer, not 1.0"]),
        (["seed=-1"], ["seed: should be greater than or equal to 0, not -1"]),
        # targets
        (["clipping._target_=tests.fake_components.clop"], ["did you mean 'clip'?"]),
        (["model._target_=stabledrll.x"], ["model._target_: cannot import", "no 'stabledrll'"]),
        (["model._target_=stabledrl.modles.x"], ["did you mean 'models'?"]),
        (["model._target_=stabledrl.__version__"], ["is not callable"]),
        (["model={a: 1}"], ["model: needs a `_target_`"]),
        # rules across keys: tests/test_rules.py
        (["ckpt_path=/no/such.ckpt"], ["ckpt_path=/no/such.ckpt: there is no such file"]),
        (["ckpt_path=best"], ["ckpt_path=best: there is no such file (null, last or a path)"]),
        (["ckpt_path=/"], ["ckpt_path=/: there is no such file"]),  # a folder is none
    ],
)
def test_refused_in_words(faults, overrides, expected):
    told = "\n".join(faults(*overrides))
    assert all(words in told for words in expected), told


@pytest.mark.parametrize(
    "overrides",
    [
        ["masking=block_random"],
        ["normalization=batch_self"],
        ["trainer.devices=auto"],
        ["+clipping.log_ratio=[1.0]"],
        ["+model.whatever=1"],
        ["+task.strange=anything"],
        ["+task.sizes=[3,4]"],
        ["+callbacks.off=null"],
        ["~scheduler"],
        ["ckpt_path=last"],
        ["clipping.epsilon=1"],
    ],
    ids=str,
)
def test_accepted(faults, overrides):
    assert faults(*overrides) == []


def test_a_typo_inside_an_experiment_is_refused(composed, write):
    write("experiment/x.yaml", "# @package _global_\nclipping: {epsilonn: 1}\nrolout: {a: 1}\n")
    told = "\n".join(faults_of(composed("experiment=x")))
    assert "rolout: unknown key; did you mean 'rollout'?" in told
    assert "did you mean 'epsilon'?" in told


def test_all_faults_come_together_and_each_once(faults):
    found = faults(
        "masking=block_random",
        "masking.pattern.block_length=0",  # seen again as estimator.masking.block_length
        "seed=-1",
        "+foo=1",
        "sampler.steps=6",
        "clipping.epsilon=0",
        "task.name=???",
    )
    assert len(found) == 6
    text = str(ConfigurationError(found))
    assert text.startswith("6 faults in the configuration\n  1. ")
    assert str(ConfigurationError(["one"])) == "one"


def run_directory(cfg: DictConfig) -> str:
    """Where Hydra would put this run, or the line in which the command line tells why not."""
    run = "${run_directory:{job: train, algorithm: a, task: b, model: c},now}"
    cfg.hydra = {"run": {"dir": run}}
    try:
        return str(cfg.hydra.run.dir)
    except OmegaConfBaseException as error:
        return explain(error)


def test_last_goes_on_with_the_run_whose_configuration_is_this_one(changed, tmp_path):
    out = f"paths.output_dir={tmp_path}"
    family = tmp_path / "train/a-b-c-s0"
    assert run_directory(changed(out)) == f"{family}/now"
    (family / "1/checkpoints").mkdir(parents=True)
    (family / "1/checkpoints/phase_00001.ckpt").touch()
    left = OmegaConf.to_yaml(changed(out, f"paths.run_dir={family}/1"), resolve=True)
    (family / "1/config.yaml").write_text(left)
    assert run_directory(changed(out, "ckpt_path=last")) == f"{family}/1"
    assert run_directory(changed(out, "ckpt_path=last", "+trainer.max_epochs=9")) == f"{family}/1"
    assert run_directory(changed(out, "ckpt_path=last", "clipping.epsilon=4.0")) == (
        f"ckpt_path=last: no run of these settings with a checkpoint in {family}; the newest "
        "there, 1, has clipping.epsilon=5.0, not 4.0 (ckpt_path=<file> goes on from any checkpoint)"
    )


def test_last_finds_its_run_while_values_are_replaced_one_by_one(changed, tmp_path):
    # as --cfg --resolve does: what refers to the run directory holds it before the last one asks
    out, run = f"paths.output_dir={tmp_path}", tmp_path / "train/a-b-c-s0/1"
    (run / "checkpoints").mkdir(parents=True)
    (run / "checkpoints/phase_00001.ckpt").touch()
    refers = "+callbacks.printing.path=${paths.run_dir}/x"
    left = OmegaConf.to_yaml(changed(out, f"paths.run_dir={run}", refers), resolve=True)
    (run / "config.yaml").write_text(left)
    for path in (refers, f"+callbacks.printing.path={run}/x"):
        assert run_directory(changed(out, path, "ckpt_path=last")) == str(run)
    elsewhere = changed(out, "+callbacks.printing.path=/other/x", "ckpt_path=last")
    assert "has callbacks.printing.path=/x, not /other/x (" in run_directory(elsewhere)


def test_last_of_a_job_that_takes_no_checkpoint_is_refused_with_the_way_out(changed, tmp_path):
    evaluate = "job._target_=stabledrl.jobs.evaluate.evaluate"
    cfg = changed(evaluate, "ckpt_path=last", f"paths.output_dir={tmp_path}")
    assert run_directory(cfg) == (
        "ckpt_path=last: job=evaluate takes no checkpoint; "
        "name the model that a run left: model.path=<run>/model"
    )


def test_build_gives_plain_values_and_readable_errors():
    target = "tests.fake_components"
    task = build(OmegaConf.create({"_target_": f"{target}.Task", "name": "x", "sizes": [1, 2]}))
    assert type(task.sizes) is list
    with pytest.raises(UserError, match="temperature above 5"):
        build(OmegaConf.create({"_target_": f"{target}.Sampler", "temperature": 6}))


def test_the_tree_shows_resolved_values(changed, capsys):
    print_config(changed("clipping.epsilon=4.25"))
    shown = capsys.readouterr().out
    assert "4.25" in shown
    assert "seed: 0" in shown


def test_did_you_mean_says_nothing_when_nothing_is_near():
    assert did_you_mean("zzz", ["epsilon"]) == ""
    assert did_you_mean("epsilonn", ["epsilon"]) == "; did you mean 'epsilon'?"
