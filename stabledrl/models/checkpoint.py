"""Published checkpoints: files read strictly into a native class, and written back as shipped.

Published modelling code is never run: weights are tensors with names, and a family says which
native parameter each name means.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor
from transformers import (
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    PreTrainedTokenizerFast,
    Qwen2Tokenizer,
)

from stabledrl.errors import one_line

WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
SHARD_SIZE = "5GB"  # what transformers takes
PICKLES = (".bin", ".pt", ".pth", ".ckpt")
SHIPPED = (".json", ".jinja", ".txt", ".model", ".py")  # text of a few MB; .py is copied, never run

# model_type in config.json of families with one of their own, and the option that reads them
FAMILIES = {
    "llada": "llada_8b",
    "Dream": "dream_7b",
    "sdar": "sdar_8b",
    "Fast_dLLM_Qwen": "fast_dllm_v2_7b",
}

Precision = Literal["float32", "bfloat16", "float16"]
Native = Callable[[str], str]


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint folder and the content of its config.json.

    name: `model.path` as it was given, for messages.
    """

    name: str
    folder: Path
    config: Mapping[str, Any]

    def fault(self, text: str) -> ValueError:
        """What to raise about this checkpoint: one line that names it."""
        return ValueError(f"model.path={self.name}: {text}")

    def setting(self, key: str) -> Any:
        """A value of config.json; ValueError if it is not there."""
        if self.config.get(key) is None:
            raise self.fault(f"its config.json has no {key}")
        return self.config[key]

    def refuse_settings(self, supported: Mapping[str, Any], native: type) -> None:
        """ValueError for a setting of config.json that the native class does not compute.

        supported: key -> the one value it may have; an absent or null key passes.
        """
        for key, value in supported.items():
            if self.config.get(key) not in (None, value):
                raise self.fault(
                    f"its config.json has {key}={self.config[key]}, "
                    f"{native.__name__} computes {key}={value} only"
                )


def open_checkpoint(path: str, family: str | None = None) -> Checkpoint:
    """A checkpoint from a folder, or from a hub id `owner/name`, which is fetched if need be.

    family: its model_type in config.json, where the family has one of its own. Names of parameters
    alone do not tell: SDAR's are Qwen3's, Dream's are Qwen2's.
    Raises ValueError, naming path and remedy, if there is no such folder or config.json, if it is
    of another family, or if the hub cannot be reached.
    """
    folder = Path(path).expanduser()
    if not folder.is_dir():
        folder = fetch(path)
    place = Checkpoint(path, folder, {})
    if not (folder / "config.json").is_file():
        raise place.fault("there is no config.json in it")
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except ValueError as error:
        raise place.fault(f"its config.json is no JSON: {error}") from error
    if not isinstance(config, dict):
        raise place.fault("its config.json holds no settings")
    kind = str(config.get("model_type"))
    right = FAMILIES.get(kind, "qwen3_mdlm or qwen2_mdlm" if kind.startswith("a2d-") else None)
    if right and kind != family and (family or kind in FAMILIES):
        raise place.fault(f"its config.json says model_type={kind}: take model={right}")
    return Checkpoint(path, folder, config)


def fetch(path: str) -> Path:
    """The local copy of a checkpoint on the Hugging Face hub; ValueError if there is none."""
    owner, _, name = path.partition("/")
    if not owner or not name or "/" in name or owner.startswith((".", "~")):
        raise ValueError(f"model.path={path}: there is no such folder")
    import huggingface_hub

    try:
        patterns = ["*.safetensors", *(f"*{ending}" for ending in SHIPPED)]
        return Path(huggingface_hub.snapshot_download(path, allow_patterns=patterns))
    except Exception as error:  # offline, unknown, gated: it fails in many ways
        reason = one_line(error, 120)
        raise ValueError(
            f"model.path={path}: no such folder here, and not to be had from the Hugging Face hub "
            f"({type(error).__name__}: {reason}); fetch it where there is a network and give its "
            "folder"
        ) from error


def read_weights(checkpoint: Checkpoint) -> dict[str, Tensor]:
    """All tensors of `model.safetensors`, or of the shards that its index names.

    Raises ValueError for pickled weights only, for missing, broken or incomplete files.
    """
    files = weight_files(checkpoint)
    weights: dict[str, Tensor] = {}
    for name in files:
        try:
            with safe_open(checkpoint.folder / name, "pt") as file:
                weights |= {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
        except Exception as error:  # missing shard, broken header, too short
            reason = one_line(error, 120)
            raise checkpoint.fault(f"cannot read {name}: {reason}") from error
    return weights


def weight_files(checkpoint: Checkpoint) -> list[str]:
    """Names of the safetensors files that make up the checkpoint."""
    folder = checkpoint.folder
    if (folder / INDEX).is_file():
        try:
            return sorted(set(json.loads((folder / INDEX).read_text())["weight_map"].values()))
        except (ValueError, KeyError, AttributeError, TypeError) as error:
            raise checkpoint.fault(f"{INDEX} is no index of weights") from error
    if (folder / WEIGHTS).is_file():
        return [WEIGHTS]
    pickled = sorted(file.name for file in folder.iterdir() if file.suffix in PICKLES)
    if pickled:
        raise checkpoint.fault(
            f"its weights are pickled ({pickled[0]}), which may run code and is refused; "
            f"convert them to {WEIGHTS}"
        )
    raise checkpoint.fault(f"there is no {WEIGHTS} in it")


def load_backbone(
    checkpoint: Checkpoint,
    native: type[PreTrainedModel],
    config: PreTrainedConfig,
    native_name: Native,
    dtype: Precision,
) -> tuple[PreTrainedModel, Original]:
    """The weights in a native class, and how they are written back.

    native_name: published name -> native name. Raises ValueError, naming the first of them, for
    parameters that the files lack, do not use, or have in another shape.
    """
    published = read_weights(checkpoint)
    names = {name: native_name(name) for name in published}
    weights = {names[name]: value for name, value in published.items()}
    for fault in weight_faults(weights, native, config):
        raise checkpoint.fault(fault)
    backbone = native.from_pretrained(
        None, config=config, state_dict=weights, dtype=dtype, attn_implementation="sdpa"
    )
    return backbone, Original(names, shipped(checkpoint.folder))


def weight_faults(
    weights: Mapping[str, Tensor], native: type[PreTrainedModel], config: PreTrainedConfig
) -> Iterator[str]:
    """Parameters that would stay newly initialised, go unused, or have the wrong shape."""
    with torch.device("meta"):
        expected = native(config).state_dict()
    tied = {"lm_head.weight"} if config.tie_word_embeddings else set()
    shared = weights.keys() & expected.keys()
    kinds = {
        "missing": expected.keys() - weights.keys() - tied,
        "unused": weights.keys() - expected.keys(),
        "wrongly shaped": {n for n in shared if weights[n].shape != expected[n].shape},
    }
    for kind, names in kinds.items():
        if names:
            yield weights_fault(kind, names, native)


def weights_fault(kind: str, names: set[str], native: type[PreTrainedModel]) -> str:
    """What to say of missing, unused or wrongly shaped weights: how many, and the first of them."""
    return (
        f"{len(names)} {kind} weights for {native.__name__}, {min(names)} first; "
        "they belong to another config.json or another model="
    )


def shipped(folder: Path) -> dict[str, bytes]:
    """Everything a checkpoint ships beside its weights: configuration, tokenizer, template, code.

    Kept in memory, because the folder may be gone when the policy is saved.
    """
    files = [file for file in folder.iterdir() if file.suffix in SHIPPED and file.is_file()]
    return {file.name: file.read_bytes() for file in sorted(files) if file.name != INDEX}


@dataclass(frozen=True)
class Original:
    """Writes a policy in the format it came in: original names, its other files byte for byte.

    names: published name -> native name. files: what was shipped beside the weights.
    """

    names: Mapping[str, str]
    files: Mapping[str, bytes]

    def __call__(
        self, backbone: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, folder: Path
    ) -> None:
        """Write into `folder`; weights above 5 GB in shards with an index."""
        from huggingface_hub import split_torch_state_dict_into_shards

        folder.mkdir(parents=True, exist_ok=True)
        for name, content in self.files.items():
            (folder / name).write_bytes(content)
        state = backbone.state_dict()
        weights = {name: state[native].detach() for name, native in self.names.items()}
        # meta tensors have no storage, so tied weights are not taken out of the plan
        sizes = {name: torch.empty_like(value, device="meta") for name, value in weights.items()}
        plan = split_torch_state_dict_into_shards(sizes, max_shard_size=SHARD_SIZE)
        for name, members in plan.filename_to_tensors.items():
            shard = {key: weights[key].to("cpu", copy=True).contiguous() for key in members}
            # a file of that name may be the one that the weights are mapped from
            save_file(shard, folder / f"{name}.new", metadata={"format": "pt"})
            (folder / f"{name}.new").replace(folder / name)
        if plan.is_sharded:
            index = {"metadata": plan.metadata, "weight_map": plan.tensor_to_filename}
            (folder / INDEX).write_text(json.dumps(index, indent=2, sort_keys=True))


def load_tokenizer(
    checkpoint: Checkpoint, rows: int, chat_template: bool
) -> PreTrainedTokenizerBase:
    """The tokenizer as shipped: tokenizer.json, or Qwen2's vocab.json with merges.txt.

    Raises ValueError if there is none, or as `check_tokenizer`.
    """
    here = {file.name for file in checkpoint.folder.iterdir()}
    kinds: Mapping[type[PreTrainedTokenizerBase], set[str]] = {
        PreTrainedTokenizerFast: {"tokenizer.json"},
        Qwen2Tokenizer: {"vocab.json", "merges.txt"},
    }
    fitting = [kind for kind, files in kinds.items() if files <= here]
    if not fitting:
        raise checkpoint.fault("there is no tokenizer.json in it, nor vocab.json with merges.txt")
    try:
        tokenizer = fitting[0].from_pretrained(checkpoint.folder)
    except Exception as error:  # broken files make the readers fail in any way
        reason = one_line(error, 120)
        raise checkpoint.fault(f"cannot read its tokenizer: {reason}") from error
    check_tokenizer(checkpoint, tokenizer, rows, chat_template)
    return tokenizer


def check_tokenizer(
    checkpoint: Checkpoint, tokenizer: PreTrainedTokenizerBase, rows: int, chat_template: bool
) -> None:
    """ValueError for more tokens than `rows` of the embedding, or for no chat template.

    chat_template: whether prompts are put in one, so that it has to be there.
    """
    if len(tokenizer) > rows:
        raise checkpoint.fault(f"its tokenizer has {len(tokenizer)} tokens, its embedding {rows}")
    if chat_template and not tokenizer.chat_template:
        raise checkpoint.fault("it ships no chat template: give model.chat_template=false")
