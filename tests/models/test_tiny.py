"""Tiny models from folders: what is incomplete or foreign is refused in one line."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from stabledrl.models.tiny import initialise, load


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    initialise(8, 1, 2, 16, 0).save_pretrained(tmp_path)
    return tmp_path


def rewrite(folder: Path, **changes: torch.Tensor | None) -> None:
    """Change the stored weights; None takes one away."""
    weights = load_file(folder / "model.safetensors") | {
        name: value for name, value in changes.items() if value is not None
    }
    kept = {name: weights[name] for name in weights if changes.get(name, 0) is not None}
    save_file(kept, folder / "model.safetensors", metadata={"format": "pt"})


def refusal(folder: Path) -> str:
    with pytest.raises(ValueError, match=rf"model\.path={folder}: ") as refused:
        load(str(folder))
    return str(refused.value).removeprefix(f"model.path={folder}: ")


def test_what_was_saved_is_what_is_loaded(folder):
    made, loaded = initialise(8, 1, 2, 16, 0).state_dict(), load(str(folder)).state_dict()
    assert all(loaded[name].equal(value) for name, value in made.items())


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "tokenizer.json"])
def test_a_missing_file_is_named(folder, name):
    (folder / name).unlink()
    assert refusal(folder) == f"there is no {name} in it"


def test_no_weight_is_left_as_it_happens_to_be(folder):
    rewrite(folder, **{"lm_head.weight": None})
    assert refusal(folder).startswith("1 missing weights in model.safetensors, lm_head.weight")


def test_no_weight_is_dropped(folder):
    rewrite(folder, **{"model.layers.1.mlp.up_proj.weight": torch.ones(2, 2)})
    assert "1 unexpected weights in model.safetensors, model.layers.1.mlp" in refusal(folder)


@pytest.mark.parametrize("token", ["mask_token", "eos_token", "pad_token"])
def test_a_tokenizer_needs_its_special_tokens(folder, token):
    path = folder / "tokenizer_config.json"
    settings = json.loads(path.read_text())
    del settings[token]
    path.write_text(json.dumps(settings))
    assert refusal(folder) == f"its tokenizer has no {token}"


def test_a_weight_of_another_shape_is_named(folder):
    rewrite(folder, **{"lm_head.weight": torch.ones(2, 2)})
    assert "1 wrongly shaped weights in model.safetensors, lm_head.weight" in refusal(folder)


def test_a_tokenizer_for_another_model_is_refused(folder):
    path = folder / "tokenizer.json"
    settings = json.loads(path.read_text())
    settings["model"]["vocab"]["x"] = 24  # four special tokens and twenty characters before it
    path.write_text(json.dumps(settings))
    assert refusal(folder) == "its tokenizer has 25 tokens, its config.json only vocab_size=24"


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "tokenizer.json"])
def test_a_broken_file_is_refused_in_one_line(folder, name):
    (folder / name).write_bytes(b"{ no such thing")
    assert "\n" not in refusal(folder)


def test_pickled_weights_are_never_read(folder):
    weights = load_file(folder / "model.safetensors")
    torch.save(weights, folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()
    assert refusal(folder) == "there is no model.safetensors in it"
