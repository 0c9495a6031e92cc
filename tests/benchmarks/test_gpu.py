"""make bench-gpu in its tiny form on the CPU, and what it says where it cannot run."""

import re
import subprocess
import sys

import pytest
import torch

from benchmarks import gpu, speed
from benchmarks.cost import Decoding, rollout_flops, update_flops
from tests.conftest import ROOT


@pytest.fixture
def _no_gpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)


@pytest.mark.usefixtures("_no_gpu")
def test_the_tiny_form_runs_and_prints_every_part(capsys):
    gpu.main(["--tiny", "--steps", "4", "--repeats", "2"])
    printed = capsys.readouterr().out
    assert f"a CPU, torch {torch.__version__}" in printed
    assert "2 completions together, prompt 8, length 16, block 8, 4 passes" in printed
    assert "AdamW (states in bfloat16); activation checkpointing on" in printed
    rows = re.findall(r"^\| (\w+) \| .* \| peak unknown \| not measured \|$", printed, re.MULTILINE)
    assert rows == ["rollout", "likelihood", "update"]


@pytest.mark.usefixtures("_no_gpu")
def test_without_a_gpu_it_ends_with_one_line(capsys):
    with pytest.raises(SystemExit) as ended:
        gpu.main([])
    assert str(ended.value).count("\n") == 0
    assert "no CUDA GPU" in str(ended.value)
    assert capsys.readouterr().out == ""


def test_the_command_itself_has_exit_code_1():
    found = subprocess.run(
        [sys.executable, "benchmarks/gpu.py"],
        cwd=ROOT,
        env={"CUDA_VISIBLE_DEVICES": "", "PATH": "/usr/bin", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )
    assert found.returncode == 1
    assert found.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--heads", "5"], "5 heads do not divide a hidden size of 64"),
        (["--steps", "3"], "sampler.steps=3 must be a multiple of the 2 blocks"),
        (["--layers", "0"], "--layers"),
    ],
)
def test_sizes_that_do_not_fit_are_told(arguments, words, capsys):
    with pytest.raises(SystemExit) as ended:
        gpu.main(["--tiny", *arguments])
    assert ended.value.code == 2
    assert words in capsys.readouterr().err


def test_sizes_are_those_of_the_command_line():
    tiny, settings = gpu.parsed(
        ["--layers", "3", "--length", "512", "--no-activation-checkpointing"]
    )
    assert not tiny
    assert settings.shape.layers == 3
    assert settings.shape.hidden_size == 4096
    assert settings.decoding == Decoding(200, 512, 32, 128)
    assert not settings.activation_checkpointing


def test_operations_and_tokens_of_the_rows():
    settings = gpu.SMALL
    rollout, likelihood, update = speed.measure(settings, torch.device("cpu"))
    assert rollout.tokens == 2 * 16
    assert rollout.flops == rollout_flops(gpu.TINY, 2, settings.decoding)
    assert likelihood.tokens == update.tokens == 2 * 24
    assert update.flops == 3 * likelihood.flops
    # each row has 1 to 16 masked tokens
    assert update_flops(gpu.TINY, 2, 24, 2) <= update.flops <= update_flops(gpu.TINY, 2, 24, 32)


def test_an_update_moves_every_weight():
    policy = speed.build(gpu.TINY, torch.device("cpu"), torch.float32)
    before = {name: it.clone() for name, it in policy.named_parameters()}
    _, sequences = speed.measure_rollout(policy, gpu.SMALL)
    speed.measure_scoring(policy, gpu.SMALL, sequences)
    assert [name for name, it in policy.named_parameters() if torch.equal(it, before[name])] == []


def test_shares_are_of_known_cards_only():
    rows = [speed.Measured("update", seconds=2.0, tokens=10, flops=989e12, memory=70_000_000_000)]
    known, unknown = (gpu.table(rows, card).splitlines()[-1] for card in ("NVIDIA H200", "other"))
    assert known == "| update | 2 | 5 | 494 | 50.0% | 70.0 |"
    assert "| peak unknown |" in unknown
    assert gpu.share_of_peak(100, "NVIDIA A100-SXM4-80GB MIG 1g.10gb") == "peak unknown"


def test_a_model_too_large_is_told_in_a_line(monkeypatch):
    def full(*_):
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(gpu, "measure", full)
    with pytest.raises(SystemExit, match="fewer --completions"):
        gpu.main(["--tiny"])


def test_make_has_the_target():
    assert "\nbench-gpu: $(STAMP) ##" in (ROOT / "Makefile").read_text()
