"""Arms of a comparison: who is in one, and what they are called."""

from pathlib import Path

import pytest
import yaml

from stabledrl.diagnostics.arms import (
    by_task,
    label_arms,
    natural,
    select_arms,
    settings_that_differ,
    without_repeats,
)
from stabledrl.diagnostics.runs import Run, read_run
from tests.diagnostics.small_folders import failed_folder, run_folder


def arms(*folders):
    return [(run.arm, run.seed) for run in label_arms([read_run(folder) for folder in folders])]


def test_arms_are_kept_by_patterns_of_their_labels():
    runs = [Run(Path(arm), arm=arm) for arm in ("a=1 b=2", "a=1 b=3", "a=1 b=2", "a=2")]
    assert select_arms(runs, []) == runs
    assert [run.arm for run in select_arms(runs, ["* b=2", "a=2"])] == ["a=1 b=2"] * 2 + ["a=2"]
    with pytest.raises(ValueError, match=r"no arm matches 'b=2'; arms: a=1 b=2; a=1 b=3; a=2"):
        select_arms(runs, ["a=1*", "b=2"])


def test_runs_are_told_apart_by_task_and_failed_ones_by_their_overrides():
    def run(name, task, *overrides):
        settings = {"task._target_": f"stabledrl.tasks.{task}"} if task else {}
        return Run(Path("sweep") / name, settings=settings, overrides=overrides)

    runs = [
        run("0", "Sudoku", "lr=1"),
        run("1", "Countdown", "task=countdown"),
        run("2", None, "task=countdown"),  # another seed of run 1
        run("3", None, "lr=3"),  # of nothing that is known
    ]
    assert by_task(runs) == {"Sudoku": [runs[0], runs[3]], "Countdown": [runs[1], runs[2]]}
    assert by_task(runs[2:]) == {"": runs[2:]}


def test_a_repeat_is_no_further_evidence(tmp_path):
    # the cell of seed 0 again in another sweep, once unfinished and once finished
    first = run_folder(tmp_path / "a/0", seed=0, settings={"k": 1}, summary={})
    again = run_folder(tmp_path / "b/0", seed=0, settings={"k": 1})
    third = run_folder(tmp_path / "c/0", seed=0, settings={"k": 1})
    other = run_folder(tmp_path / "a/1", seed=1, settings={"k": 1})
    apart = run_folder(tmp_path / "a/2", seed=0, settings={"k": 2})
    failed = failed_folder(tmp_path / "a/3", "broke", ["k=3"])
    runs = [read_run(folder) for folder in (first, again, third, other, apart, failed)]
    kept = [run.directory for run in without_repeats(runs)]
    assert kept == [again, other, apart, failed]


def component(name, **settings):
    return {"_target_": f"stabledrl.functional.{name}", **settings}


def test_arms_differ_in_more_than_the_seed_and_are_named_by_functions_and_last_keys(tmp_path):
    corners = [
        run_folder(
            tmp_path / f"{clip}{norm}{seed}",
            seed,
            settings={
                "clipping": component(f"clipping.{clip}", epsilon=epsilon),
                "normalization": component(f"normalization.{norm}"),
                "task": {"_target_": "x.Sudoku"},
            },
        )
        for clip, epsilon in (("none", 1.0), ("conditional", 0.2))
        for norm in ("group", "self_normalized")
        for seed in (1, 0)
    ]
    expected = [
        (f"clipping={clip} normalization={norm}", seed)
        for clip in ("conditional", "none")
        for norm in ("group", "self_normalized")
        for seed in (0, 1)
    ]
    assert arms(*corners) == expected  # epsilon follows from the clipping: not in the label
    runs = label_arms([read_run(folder) for folder in corners])
    assert set(settings_that_differ(runs)) == {
        "clipping._target_",
        "clipping.epsilon",
        "normalization._target_",
    }


def test_choices_come_first_and_keys_where_they_do_not_suffice(tmp_path):
    made = [
        ("a", "grpo", 0.1),
        ("b", "stabledrl", 0.1),
        ("c", "stabledrl", 0.01),
    ]
    folders = [
        run_folder(
            tmp_path / name,
            settings={"clipping": component(f"clipping.{algorithm}"), "optimizer": {"lr": rate}},
            choices={"algorithm": algorithm, "clipping": algorithm, "hydra/launcher": name},
        )
        for name, algorithm, rate in made
    ]
    assert [label for label, _ in arms(*folders)] == [
        "algorithm=grpo lr=0.1",
        "algorithm=stabledrl lr=0.01",
        "algorithm=stabledrl lr=0.1",
    ]


def test_keys_with_the_same_last_part_are_named_in_full(tmp_path):
    pairs = [(1, 1), (1, 2), (2, 1)]
    folders = [
        run_folder(tmp_path / f"{a}{b}", settings={"one": {"k": a}, "two": {"k": b}})
        for a, b in pairs
    ]
    assert [label for label, _ in arms(*folders)] == [f"one.k={a} two.k={b}" for a, b in pairs]


@pytest.mark.parametrize(
    ("values", "labels"),
    [
        ((0.12345678, 0.12345679, 0.5), ["0.12345678", "0.12345679", "0.5"]),
        ((1, 1.0, True), ["1", "1.0", "true"]),
        ((1, "1"), ["1", '"1"']),
        ((None, "null"), ["null", '"null"']),
        ((0.5, 1e-05, 2.0), ["0.5", "1e-05", "2"]),  # short where that tells them apart
    ],
)
def test_values_that_differ_never_read_the_same(tmp_path, values, labels):
    folders = [
        run_folder(tmp_path / str(number), number, settings={"lr": value})
        for number, value in enumerate(values)
    ]
    named = sorted(arms(*folders), key=lambda arm: arm[1])
    assert named == [(f"lr={label}", number) for number, label in enumerate(labels)]


def test_functions_of_the_same_name_are_named_with_their_modules(tmp_path):
    folders = [
        run_folder(tmp_path / name, settings={"clipping": {"_target_": f"{name}.clip"}})
        for name in ("mine", "ours")
    ]
    assert arms(*folders) == [("clipping=mine.clip", 0), ("clipping=ours.clip", 0)]


def test_no_choice_is_null_whether_it_is_recorded_or_not(tmp_path):
    folders = [
        run_folder(tmp_path / str(number), settings={"kl": {"weight": number}}, choices=choices)
        for number, choices in enumerate([{"task": "sudoku", "kl": None}, {"task": "sudoku"}])
    ]
    assert read_run(folders[0]).choices == {"task": "sudoku", "kl": "null"}
    assert [label for label, _ in arms(*folders)] == ["weight=0", "weight=1"]


def test_failed_jobs_of_two_sweeps_are_not_taken_for_the_same(tmp_path):
    folders = [failed_folder(tmp_path / sweep / "0-a", "broke", ["lr=3"]) for sweep in "ab"]
    assert [label for label, _ in arms(*folders)] == ["lr=3", "lr=3 (2)"]


def test_a_single_arm(tmp_path):
    assert arms(run_folder(tmp_path / "a", settings={"x": 1})) == [("all runs", 0)]
    named = run_folder(tmp_path / "b", settings={"x": 1}, choices={"algorithm": "grpo"})
    assert arms(named) == [("algorithm=grpo", 0)]


def test_a_job_that_failed_early_joins_the_arm_of_its_overrides(tmp_path):
    ran = run_folder(tmp_path / "0-a", settings={"lr": 1})
    other = run_folder(tmp_path / "1-b", settings={"lr": 2})
    (ran / ".hydra/overrides.yaml").write_text(yaml.safe_dump(["lr=1", "seed=0"]))
    (other / ".hydra/overrides.yaml").write_text(yaml.safe_dump(["lr=2", "seed=0"]))
    failed = failed_folder(tmp_path / "2-c", "broke", ["lr=1", "seed=5"])
    alone = failed_folder(tmp_path / "3-d", "broke", ["lr=3", "seed=5"])
    silent = failed_folder(tmp_path / "4-e", "broke")
    assert arms(ran, other, failed, alone, silent) == [
        ("4-e", None),
        ("lr=1", 0),
        ("lr=1", 5),
        ("lr=2", 0),
        ("lr=3", 5),
    ]


def test_natural_order_counts_numbers():
    names = ["epsilon=100", "epsilon=5", "epsilon=0.2", "epsilon=1e-05", "a"]
    assert sorted(names, key=natural) == [
        "a",
        "epsilon=1e-05",
        "epsilon=0.2",
        "epsilon=5",
        "epsilon=100",
    ]


def composed_in(clone, folder):
    """Record, as Hydra does, that the run was composed from a clone's conf/."""
    sources = [
        {"path": "hydra.conf", "schema": "pkg", "provider": "hydra"},
        {"path": f"{clone}/conf", "schema": "file", "provider": "main"},
        {"path": "", "schema": "structured", "provider": "schema"},
    ]
    hydra = {"hydra": {"runtime": {"config_sources": sources}}}
    (folder / ".hydra/hydra.yaml").write_text(yaml.safe_dump(hydra))
    return folder


def test_the_same_settings_of_two_clones_are_one_arm(tmp_path):
    folders = [
        composed_in(
            clone,
            run_folder(
                tmp_path / str(seed),
                seed,
                settings={
                    "model": {"path": f"{clone}/stabledrl/assets/tiny"},
                    "files": [f"{clone}/a", f"{tmp_path}/{seed}/b", 3],
                    "other": "/a/clones/x",  # only begins alike
                },
            ),
        )
        for seed, clone in enumerate(("/a/clone", "/b/other"))
    ]
    assert read_run(folders[0]).settings == {
        "model.path": "/stabledrl/assets/tiny",
        "files": ["/a", "/b", 3],
        "other": "/a/clones/x",
    }
    assert arms(*folders) == [("all runs", 0), ("all runs", 1)]


def test_a_run_from_a_checkpoint_is_another_arm_and_a_resumed_one_is_not(tmp_path):
    starts = (None, "last", "/x/y.ckpt")
    folders = [
        run_folder(tmp_path / str(seed), seed, settings={"lr": 1, "ckpt_path": start})
        for seed, start in enumerate(starts)
    ]
    assert [read_run(folder).settings for folder in folders] == [
        {"lr": 1},
        {"lr": 1},
        {"lr": 1, "ckpt_path": "/x/y.ckpt"},
    ]
    assert sorted(arms(*folders)) == [
        ("ckpt_path=/x/y.ckpt", 2),
        ("ckpt_path=–", 0),
        ("ckpt_path=–", 1),
    ]
