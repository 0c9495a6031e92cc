"""The composed configuration: its validation, its resolvers, its picture.

`validate(cfg)` refuses a configuration that cannot run before anything heavy is built, and names
all faults at once: `stabledrl.schema` says what may stand in it, `stabledrl.binding` checks every
`_target_` node against the code it names, `stabledrl.rules` knows the rules across groups.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from omegaconf import Container, DictConfig, ListConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from stabledrl.directories import last_directory, run_family, sweep_directory
from stabledrl.errors import ConfigurationError, UserError, listing, one_line
from stabledrl.files import content_hash
from stabledrl.fingerprint import material, resolved_hash

if TYPE_CHECKING:
    from stabledrl.binding import Fault


def validate(cfg: DictConfig) -> None:
    """Raise ConfigurationError naming everything that is wrong with a composed configuration."""
    from stabledrl.binding import construction_fault, walk  # pydantic: not on the way to --help
    from stabledrl.rules import RULES
    from stabledrl.schema import schema_faults

    unreadable: list[Fault] = []
    plain = _plain(cfg, "", unreadable)
    plain.pop("hydra", None)
    reported = {fault.path for fault in unreadable}
    faults = [*unreadable, *(f for f in schema_faults(plain) if f.path not in reported)]
    for key, node in plain.items():
        given = frozenset({"cfg"}) if key == "job" else frozenset()  # run.py hands it over
        faults += walk(key, node, given)
    broken = {fault.path.split(".")[0] for fault in faults}
    across = [line for rule in RULES for line in rule(plain)]
    across = [line for line in across if line.split(":")[0] not in broken]  # of a whole group
    ruled = {line.split(".")[0] for line in across}
    for key, node in plain.items():
        if isinstance(node, Mapping) and "_target_" in node and key not in broken | ruled | {"job"}:
            faults += filter(None, [construction_fault(key, node)])
    if faults or across:
        raise ConfigurationError([*map(str, faults), *across])


def _plain(node: Any, path: str, faults: list[Fault]) -> Any:
    """Dicts, lists and scalars with interpolations resolved; unreadable leaves become MISSING."""
    if isinstance(node, DictConfig | ListConfig) and not node._is_none():
        keys: list[Any] = list(node if isinstance(node, DictConfig) else range(len(node)))
        items = {key: _read(node, key, f"{path}.{key}".lstrip("."), faults) for key in keys}
        return items if isinstance(node, DictConfig) else list(items.values())
    return node


def _read(parent: Container, key: Any, path: str, faults: list[Fault]) -> Any:
    from stabledrl.binding import MISSING, Borrowed, Fault

    if OmegaConf.is_missing(parent, key):
        faults.append(Fault(path, "missing: give it a value"))
        return MISSING
    try:
        value = _plain(parent[key], path, faults)
        borrowed = isinstance(value, dict) and OmegaConf.is_interpolation(parent, key)
        return Borrowed(value) if borrowed else value
    except OmegaConfBaseException as error:
        faults.append(Fault(path, str(error).strip().splitlines()[0]))
        return MISSING


def build(node: DictConfig, **arguments: Any) -> Any:
    """Instantiate a component from plain values (lists, not ListConfigs), failures as UserError."""
    from hydra.errors import InstantiationException
    from hydra.utils import instantiate

    try:
        return instantiate(node, _convert_="all", **arguments)
    except InstantiationException as error:
        if isinstance(error.__cause__, UserError | ValueError | TypeError | OSError):
            from stabledrl.binding import words

            reason = one_line(words(error.__cause__))
            raise UserError(f"{node.get('_target_')}: {reason}") from error
        raise


# --- resolvers ---------------------------------------------------------------------------------


def _run_directory(choices: Mapping[str, str], time: str, *, _root_: Any) -> str:
    """A new directory, `<family>/<time>`, or with ckpt_path=last that of the run to go on with."""
    family = run_family(_root_.paths.output_dir, choices, _root_.seed)
    if _root_.ckpt_path != "last":
        return str(family / time)
    try:
        return last_directory(family, material(_root_))
    except UserError:
        from stabledrl.rules import checkpoint_is_used  # imports the job: not on the way to --cfg

        for line in checkpoint_is_used(_root_):  # the better reason, and validation comes too late
            raise UserError(line) from None
        raise


def _current_run_directory(*, _root_: Any) -> str:
    """The directory Hydra gave this run; while there is none (`--cfg`), the one it would give."""
    from hydra.core.hydra_config import HydraConfig

    if not HydraConfig.initialized():
        return str(Path(_root_.paths.output_dir, "unnamed"))
    runtime = HydraConfig.get().runtime
    if OmegaConf.is_missing(runtime, "output_dir"):
        return _run_directory(runtime.choices, "<time>", _root_=_root_)
    return str(runtime.output_dir)


def _options(folder: str) -> str:
    """Names of the yaml files in a folder such as sweeps, for the help text."""
    files = Path(os.environ["STABLEDRL_ROOT"], folder).glob("*.yaml")
    return listing(path.stem for path in files) or "none yet"


def _groups(indent: int) -> str:
    """The groups of conf/ and their options, a line each, for the help text."""
    folders = sorted(Path(os.environ["STABLEDRL_ROOT"], "conf").iterdir())
    filled = [folder for folder in folders if any(folder.glob("*.yaml"))]
    lines = [f"{folder.name:<15}{_options(f'conf/{folder.name}')}" for folder in filled]
    return f"\n{' ' * indent}".join(lines)


def help_text() -> str:
    """conf/hydra/help/stabledrl.yaml as `--help` prints it, without the seconds Hydra takes."""
    register_resolvers()
    text = OmegaConf.load(Path(os.environ["STABLEDRL_ROOT"], "conf/hydra/help/stabledrl.yaml"))
    return str(OmegaConf.create({"hydra": {"help": text}}).hydra.help.template).rstrip()


def register_resolvers() -> None:
    """Make the resolvers of conf/ known: strings and hashes only, nothing is evaluated."""
    add = OmegaConf.register_new_resolver
    add("run_directory", _run_directory, replace=True)
    # Cached: the list of overrides must be the same for all jobs of one command.
    add("sweep_directory", sweep_directory, use_cache=True, replace=True)
    add("config_hash", lambda *, _root_: resolved_hash(_root_), replace=True)
    add("current_run_directory", _current_run_directory, replace=True)
    add("content_hash", content_hash, replace=True)
    add("options", _options, replace=True)
    add("groups", _groups, replace=True)


# --- printing ----------------------------------------------------------------------------------


def print_config(cfg: DictConfig) -> None:
    """Print the resolved configuration as a tree, on the first process only."""
    if os.environ.get("RANK", os.environ.get("LOCAL_RANK", "0")) != "0":
        return
    from rich import print as rich_print
    from rich.syntax import Syntax
    from rich.tree import Tree

    tree = Tree("configuration", guide_style="dim")
    scalars = {key: cfg[key] for key in cfg if not isinstance(cfg[key], Container)}
    for key, node in [("run", OmegaConf.create(scalars)), *cfg.items()]:
        if isinstance(node, Container):
            text = OmegaConf.to_yaml(node, resolve=True).rstrip()
            tree.add(str(key)).add(Syntax(text, "yaml", background_color="default", word_wrap=True))
    rich_print(tree)
