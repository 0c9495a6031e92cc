"""Token ids of a checkpoint: what its own files say, checked against what is known of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from transformers import PreTrainedTokenizerBase

from stabledrl.models.checkpoint import Checkpoint


@dataclass(frozen=True)
class Published:
    """Token ids of a published checkpoint, known by the `rows` of its embedding.

    pad_token_id: None where we do not know it, so that any is taken.
    """

    rows: int
    mask_token_id: int
    end_token_ids: tuple[int, ...]
    pad_token_id: int | None


@dataclass(frozen=True)
class TokenIds:
    """Mask, end and pad tokens."""

    mask_token_id: int
    end_token_ids: tuple[int, ...]
    pad_token_id: int


@dataclass(frozen=True)
class GivenIds:
    """Token ids from the configuration: `model.mask_token_id` and so on; None leaves it open."""

    mask_token_id: int | None = None
    end_token_ids: Sequence[int] | None = None
    pad_token_id: int | None = None


def token_ids(
    checkpoint: Checkpoint,
    tokenizer: PreTrainedTokenizerBase,
    rows: int,
    given: GivenIds,
    end_tokens: Sequence[str],
    published: Sequence[Published],
) -> TokenIds:
    """The ids that config.json and tokenizer state, else those given.

    rows: of the embedding. end_tokens: further end tokens of the family's chat template; those
    that the tokenizer has count. Raises ValueError, naming the setting, for an id that nobody
    states, two that contradict, one outside the vocabulary, one that is not what is published.
    """
    found = TokenIds(
        one_id(checkpoint, tokenizer, "mask_token_id", given.mask_token_id),
        end_ids(checkpoint, tokenizer, given.end_token_ids, end_tokens),
        one_id(checkpoint, tokenizer, "pad_token_id", given.pad_token_id),
    )
    for number in (found.mask_token_id, found.pad_token_id, *found.end_token_ids):
        if not 0 <= number < rows:
            raise checkpoint.fault(f"token id {number} is none of the {rows} of its embedding")
    if found.mask_token_id in (found.pad_token_id, *found.end_token_ids):
        raise checkpoint.fault(
            f"its mask token {found.mask_token_id} is its pad or end token too; "
            "give model.mask_token_id=…"
        )
    for known in published:
        if known.rows == rows:
            assert_published(checkpoint, found, known, given)
    return found


def one_id(
    checkpoint: Checkpoint, tokenizer: PreTrainedTokenizerBase, name: str, given: int | None
) -> int:
    """The mask or pad token: stated once, or twice alike, or given by hand."""
    places = {"config.json": checkpoint.config.get(name), "tokenizer": getattr(tokenizer, name)}
    stated = {place: value for place, value in places.items() if isinstance(value, int)}
    values = set(stated.values())
    if given is not None:
        if values and given not in values:
            raise checkpoint.fault(f"model.{name}={given}, but the checkpoint says {min(values)}")
        return given
    if not values:
        raise checkpoint.fault(
            f"neither its config.json nor its tokenizer has a {name.removesuffix('_id')}: "
            f"give model.{name}=…"
        )
    if len(values) > 1:
        says = ", ".join(f"{place} says {value}" for place, value in stated.items())
        raise checkpoint.fault(f"two kinds of {name}: {says}; give model.{name}=…")
    return values.pop()


def end_ids(
    checkpoint: Checkpoint,
    tokenizer: PreTrainedTokenizerBase,
    given: Sequence[int] | None,
    end_tokens: Sequence[str],
) -> tuple[int, ...]:
    """Every id that ends a completion, those of config.json first; given ones replace them all."""
    if given is not None:
        if not given:
            raise checkpoint.fault("model.end_token_ids=[]: completions need at least one")
        return tuple(given)
    configured = checkpoint.config.get("eos_token_id")
    stated = configured if isinstance(configured, list) else [configured]
    special = tokenizer.eos_token_id
    stated = [*stated, special if special is not None else tokenizer.sep_token_id]
    vocabulary = tokenizer.get_vocab()
    stated += [vocabulary.get(token) for token in end_tokens]
    found = tuple(dict.fromkeys(number for number in stated if number is not None))
    if not found:
        raise checkpoint.fault(
            "neither its config.json nor its tokenizer has an end token: "
            "give model.end_token_ids=[…]"
        )
    return found


def assert_published(
    checkpoint: Checkpoint, found: TokenIds, known: Published, given: GivenIds
) -> None:
    """ValueError if a checkpoint of a published size has other ids, unless they were given."""
    pairs = {
        "mask_token_id": (found.mask_token_id, known.mask_token_id),
        "end_token_ids": (set(found.end_token_ids), set(known.end_token_ids)),
        "pad_token_id": (found.pad_token_id, known.pad_token_id),
    }
    for name, (value, expected) in pairs.items():
        if expected is not None and value != expected and getattr(given, name) is None:
            raise checkpoint.fault(
                f"{name} is {value} in its files, but {expected} in the published checkpoints with "
                f"{known.rows} embedding rows; if it is meant, give model.{name}=…"
            )
