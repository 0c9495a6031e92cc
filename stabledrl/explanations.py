"""One line for whatever went wrong: what it is about, and what was probably meant."""

from __future__ import annotations

import re

from hydra.errors import HydraException, MissingConfigException, OverrideParseException
from omegaconf import DictConfig
from omegaconf.errors import OmegaConfBaseException

from stabledrl.errors import UserError, did_you_mean, first_line, listing, one_line, unknown_key
from stabledrl.launch import ProcessFailed


def explain(error: BaseException) -> str:
    """One line that says what is wrong and, where it can be told, what was probably meant."""
    if isinstance(error, UserError | ProcessFailed):
        return str(error)
    # OmegaConf puts what a resolver raises into words of its own
    kind, wrapped, words = first_line(error).partition(" raised while resolving interpolation: ")
    if wrapped and kind == UserError.__name__:
        return words
    if isinstance(error, MissingConfigException) and error.options is not None:
        group, _, option = str(error.missing_cfg_file).rpartition("/")
        hint = did_you_mean(option, error.options)
        options = f"options: {listing(error.options)}" if error.options else "the group is empty"
        return f"{group}={option}: no such option{hint} ({options})"
    plugin = re.search(r"^\w+: Unknown plugin class : 'hydra_plugins\.(\w+)", described(error))
    if plugin:
        package = plugin[1].replace("_", "-")
        return f"hydra/launcher: its plugin is not installed: pip install {package}"
    if isinstance(error, OverrideParseException):
        return f"cannot read '{error.override}': {first_line(error)}"
    for source in (error.__cause__, error):
        if isinstance(source, OmegaConfBaseException) and source.full_key:
            return f"{source.full_key}: {_about_key(source)}"
    if isinstance(error, OmegaConfBaseException | HydraException):
        lines = [first_line(error), first_line(error.__cause__) if error.__cause__ else ""]
        return ": ".join(filter(None, lines))
    return described(error)


def described(error: BaseException) -> str:
    """Kind and words of an error, in one line."""
    return f"{type(error).__name__}: {one_line(error)}"


def _about_key(error: OmegaConfBaseException) -> str:
    """Whether the key is unknown where it was looked for, or what else is wrong with it."""
    parent = error.parent_node
    known = [str(key) for key in parent] if isinstance(parent, DictConfig) else []
    if not known or str(error.key) in known:
        return first_line(error)
    told = unknown_key(str(error.key), known)
    return told if "did you mean" in told else f"{told}; +key adds one its yaml leaves out"
