"""The tiny model: a Llama of a few hundred thousand parameters with a character tokenizer.

The same native class and the same code path as an 8B checkpoint, small enough for a laptop CPU.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

import torch
from annotated_types import Ge, Gt
from tokenizers import Regex, Tokenizer
from tokenizers.decoders import Fuse
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Split
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from stabledrl.errors import one_line
from stabledrl.policy import AdapterFacts, Policy

SPECIAL_TOKENS = ("<pad>", "<end>", "<mask>", "<unknown>")
CHARACTERS = "0123456789+-*/()=,: "


def character_tokenizer() -> PreTrainedTokenizerFast:
    """A real fast tokenizer: one token per character of sums and Sudokus, and four special ones."""
    vocabulary = {token: index for index, token in enumerate([*SPECIAL_TOKENS, *CHARACTERS])}
    tokenizer = Tokenizer(WordLevel(vocabulary, unk_token="<unknown>"))
    tokenizer.pre_tokenizer = Split(Regex("."), behavior="isolated")
    tokenizer.decoder = Fuse()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="<pad>",
        eos_token="<end>",
        mask_token="<mask>",
        unk_token="<unknown>",
        padding_side="left",
        clean_up_tokenization_spaces=False,
    )


def initialise_backbone(
    hidden_size: int, layers: int, heads: int, feedforward_size: int, seed: int
) -> LlamaForCausalLM:
    """A randomly initialised tiny Llama; the global random state is left as it was found.

    Raises ValueError if the heads do not divide the width.
    """
    if hidden_size % heads:
        raise ValueError(f"model.heads={heads} does not divide model.hidden_size={hidden_size}")
    tokenizer = character_tokenizer()
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=hidden_size,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=heads,
        intermediate_size=feedforward_size,
        max_position_embeddings=256,
        # Llama's own; with hidden_size**-0.5 the Sudoku model learned its puzzles by heart instead:
        # 0.29 on held-out puzzles, 0.66 on seen ones (one exploratory run, 800 updates)
        initializer_range=0.02,
        tie_word_embeddings=False,
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id,
        bos_token_id=None,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return LlamaForCausalLM(config).float()


def initialise(
    hidden_size: Annotated[int, Gt(0)],
    layers: Annotated[int, Gt(0)],
    heads: Annotated[int, Gt(0)],
    feedforward_size: Annotated[int, Gt(0)],
    seed: Annotated[int, Ge(0)],
) -> Policy:
    """A tiny policy with random weights. Raises ValueError if the heads do not divide the width."""
    backbone = initialise_backbone(hidden_size, layers, heads, feedforward_size, seed)
    return assemble(backbone, character_tokenizer())


def load(path: str) -> Policy:
    """A tiny policy from a folder written by `Policy.save_pretrained` (safetensors only).

    Raises ValueError with the folder's name if it is missing or incomplete.
    """
    return assemble(*read(path))


def read(path: str) -> tuple[LlamaForCausalLM, PreTrainedTokenizerFast]:
    """Backbone and tokenizer of such a folder; ValueError as `load`."""
    folder = Path(path)
    for name in ("config.json", "model.safetensors", "tokenizer.json"):
        if not (folder / name).is_file():
            raise ValueError(f"model.path={path}: there is no {name} in it")
    try:
        # Any: transformers' annotation forgets the loading info
        loaded: Any = LlamaForCausalLM.from_pretrained(
            folder, use_safetensors=True, output_loading_info=True, ignore_mismatched_sizes=True
        )
        tokenizer = PreTrainedTokenizerFast.from_pretrained(folder)
    except Exception as error:  # broken files make the readers fail in any way
        reason = one_line(error, 200)
        raise ValueError(f"model.path={path}: {reason}") from error
    backbone, found = loaded
    faults = [*weight_faults(found), *tokenizer_faults(tokenizer, backbone.config.vocab_size)]
    if faults:
        raise ValueError(f"model.path={path}: {faults[0]}")
    return backbone.float(), tokenizer


def weight_faults(found: Mapping[str, Any]) -> Iterator[str]:
    """What transformers' loading info says of weights that are not those of config.json."""
    mismatched = {name for name, *_ in found["mismatched_keys"]}
    kinds = {
        "missing": found["missing_keys"] - mismatched,
        "unexpected": found["unexpected_keys"],
        "wrongly shaped": mismatched,
    }
    for kind, names in kinds.items():
        if names:
            yield (
                f"{len(names)} {kind} weights in model.safetensors, {min(names)} first; "
                "it belongs to another config.json"
            )


def tokenizer_faults(tokenizer: PreTrainedTokenizerFast, rows: int) -> Iterator[str]:
    """Special tokens that a tokenizer lacks, or ids beyond the `rows` of the embedding."""
    for token in ("mask_token", "eos_token", "pad_token"):
        if getattr(tokenizer, token) is None:
            yield f"its tokenizer has no {token}"
    if len(tokenizer) > rows:
        yield f"its tokenizer has {len(tokenizer)} tokens, its config.json only vocab_size={rows}"


def assemble(
    backbone: LlamaForCausalLM,
    tokenizer: PreTrainedTokenizerFast,
    block_length: int | None = None,
) -> Policy:
    """Backbone and tokenizer as a policy; the token ids are the tokenizer's own.

    block_length: of block-causal attention, None for bidirectional.
    """
    facts = AdapterFacts(
        mask_token_id=tokenizer.mask_token_id,
        end_token_ids=(tokenizer.eos_token_id,),
        pad_token_id=tokenizer.pad_token_id,
        block_length=block_length,
    )
    return Policy(backbone, tokenizer, facts)
