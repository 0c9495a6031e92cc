"""Which checkpoint a run goes on from, and that a broken or hostile file is only ever refused."""

import logging
from pathlib import Path

import pytest
import torch

from stabledrl.errors import UserError
from stabledrl.training.checkpoints import find, read

CONTENT = {"state_dict": {"weight": torch.ones(2)}, "global_step": 3, "epoch": 1, "history": []}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "checkpoints").mkdir()
    return tmp_path / "checkpoints"


def save(path: Path, step: int = 3) -> Path:
    torch.save(CONTENT | {"global_step": step}, path)
    return path


def halve(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def test_best_is_no_magic_word(folder):
    save(folder / "best.ckpt")
    with pytest.raises(UserError, match=r"^ckpt_path=best: there is no such file$"):
        find("best", folder.parent)


def test_null_is_none(tmp_path):
    assert find(None, tmp_path) is None


def test_last_is_the_newest_and_10_comes_after_9(folder):
    for phase in (8, 9, 10):
        save(folder / f"phase_{phase:05d}.ckpt", phase)
    save(folder / "best.ckpt", 99)
    found = find("last", folder.parent)
    assert found is not None
    assert found[0].name == "phase_00010.ckpt"
    assert found[1]["global_step"] == 10


def test_a_half_written_last_one_gives_way_to_the_one_before_with_a_warning(folder, caplog):
    for phase in (9, 10):
        save(folder / f"phase_{phase:05d}.ckpt", phase)
    halve(folder / "phase_00010.ckpt")
    with caplog.at_level(logging.WARNING):
        found = find("last", folder.parent)
    assert found is not None
    assert found[0].name == "phase_00009.ckpt"
    [record] = caplog.records
    assert "phase_00010.ckpt: not a readable checkpoint" in record.getMessage()
    assert "\n" not in record.getMessage()


def test_after_a_half_written_one_the_file_that_replaced_it_counts(folder):
    for name in ("phase_00009.ckpt", "phase_00010.ckpt", "phase_00010-v1.ckpt"):
        save(folder / name)
    halve(folder / "phase_00010.ckpt")
    found = find("last", folder.parent)
    assert found is not None
    assert found[0].name == "phase_00010-v1.ckpt"


@pytest.mark.parametrize("made", [True, False])
def test_last_without_a_usable_one_is_an_error_that_names_the_key(folder, made):
    if made:
        halve(save(folder / "phase_00001.ckpt"))
    with pytest.raises(UserError, match=r"^ckpt_path=last: there is no usable checkpoint in "):
        find("last", folder.parent)


@pytest.mark.parametrize("name", ["mine.ckpt", "best.ckpt"])
def test_an_explicit_path_is_taken_as_it_is(tmp_path, name):
    with pytest.raises(UserError, match=rf"^ckpt_path=.*{name}: there is no such file$"):
        find(str(tmp_path / name), tmp_path / "elsewhere")
    path = save(tmp_path / name, 5)
    found = find(str(path), tmp_path / "elsewhere")
    assert found is not None
    assert (found[0], found[1]["global_step"]) == (path, 5)


def test_a_missing_path(tmp_path):
    for path in (tmp_path / "none.ckpt", tmp_path):
        with pytest.raises(UserError, match=f"^ckpt_path={path}: there is no such file"):
            find(str(path), tmp_path)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\n",
        b"hello",
        b"PK\x03\x04",
        b"\x80\x02.",
        b"\x80\x04\x95",
        b"(lp0\nV",
        bytes(range(256)),
    ],
)
def test_bytes_that_are_no_checkpoint(tmp_path, content):
    path = tmp_path / "x.ckpt"
    path.write_bytes(content)
    with pytest.raises(UserError, match="not a readable checkpoint") as caught:
        read(path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("share", [0.01, 0.3, 0.6, 0.9, 0.999])
def test_every_truncation_is_refused(tmp_path, share):
    path = save(tmp_path / "x.ckpt")
    whole = path.read_bytes()
    path.write_bytes(whole[: int(share * len(whole))])
    with pytest.raises(UserError, match="not a readable checkpoint"):
        read(path)


@pytest.mark.parametrize(
    "content",
    [
        [1, 2],
        {"a": 1},
        {"state_dict": {}},
        torch.ones(2),
        {"model": {}, "global_step": 1},
        *({key: CONTENT[key] for key in CONTENT if key != left_out} for left_out in CONTENT),
    ],
)
def test_other_files_of_torch_are_no_checkpoints(tmp_path, content):
    path = tmp_path / "x.ckpt"
    torch.save(content, path)
    with pytest.raises(UserError, match="not a training checkpoint"):
        read(path)


class Malicious:
    """Creates a file when it is unpickled."""

    def __init__(self, target: Path) -> None:
        self.target = target

    def __reduce__(self):
        return Path.touch, (self.target,)


@pytest.mark.parametrize("zipped", [True, False])
def test_nothing_in_a_checkpoint_is_executed(tmp_path, zipped):
    path, target = tmp_path / "x.ckpt", tmp_path / "executed"
    content = CONTENT | {"payload": Malicious(target)}
    torch.save(content, path, _use_new_zipfile_serialization=zipped)
    with pytest.raises(UserError, match="not a readable checkpoint"):
        find(str(path), tmp_path)
    assert not target.exists()
    torch.load(path, weights_only=False)  # the payload does work
    assert target.exists()
