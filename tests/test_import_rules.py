"""Imports point one way: who may know whom, and which libraries stay in which rooms."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "stabledrl"

# what rooms above may always use
GROUND = {"functional", "types", "randomness", "errors", "declarations", "files", "share"}
POLICY = GROUND | {"policy", "attention"}
OBJECTIVE = POLICY | {"estimators", "pairing", "penalty", "levels", "algorithm"}
PHASE = OBJECTIVE | {"samplers", "rollout"}
FLOOR = PHASE | {
    "launch",
    "prompts",
    "whole_step",
    "models",
    "tasks",
    "rewards",
    "diagnostics",
    "training",
    "config",
    "fingerprint",
}

# room -> rooms it may import (itself always); a room that is not here fails the test
MAY_IMPORT = {
    "__init__": set(),
    "errors": set(),
    "files": set(),
    "declarations": set(),
    "functional": {"declarations"},
    "types": set(),
    "share": set(),
    "randomness": set(),
    "attention": {"functional", "types", "errors"},
    "policy": {"attention", "functional", "types", "errors"},
    "models": POLICY,
    "samplers": POLICY,
    "estimators": POLICY,
    "pairing": {"types"},
    "penalty": {"functional", "types", "errors", "declarations"},
    "levels": {"types", "declarations"},
    "algorithm": OBJECTIVE,
    "whole_step": OBJECTIVE,
    "rewards": {"types", "errors"},
    "tasks": {"types", "rewards", "errors", "files"},
    "diagnostics": {"functional", "types"},
    "rollout": PHASE,
    "prompts": PHASE,
    "training": FLOOR,
    "jobs": FLOOR | {"jobs"},
    "binding": {"errors"},
    "settings": {"binding"},
    "objective_rules": {"settings"},
    "block_rules": {"settings"},
    "rules": {"settings", "errors", "objective_rules", "block_rules"},
    "schema": {"binding", "errors"},
    "fingerprint": set(),
    "directories": {"fingerprint", "errors"},
    "config": {"binding", "files", "rules", "schema", "errors", "directories", "fingerprint"},
    "isolation": {"errors"},
    "launch": {"errors", "isolation", "settings"},
    "explanations": {"errors", "launch"},
    "command_line": {
        "config",
        "errors",
        "explanations",
        "fingerprint",
        "isolation",
        "jobs",
        "settings",
        "launch",
    },
}
FRAMEWORKS = {"hydra", "lightning", "omegaconf", "wandb", "wandb_workspaces"}
WITH_FRAMEWORKS = {"training", "jobs", "config", "fingerprint", "explanations", "command_line"}
STANDARD_IN_FUNCTIONAL = {
    "__future__",
    "collections",
    "dataclasses",
    "functools",
    "itertools",
    "math",
    "typing",
}
MODULES = sorted(PACKAGE.rglob("*.py"))


def room(path: Path) -> str:
    """First folder or file below the package."""
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imports(path: Path) -> Iterator[str]:
    """Dotted names that a module imports, those for type checkers only left out."""
    tree = ast.parse(path.read_text())
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            node.body = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            if node.module == "stabledrl":
                yield from (f"stabledrl.{alias.name}" for alias in node.names)
            else:
                yield node.module or ""


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_no_arrow_upward(path):
    here = room(path)
    known = {name.split(".")[1] for name in imports(path) if name.startswith("stabledrl.")}
    assert known - {here} <= MAY_IMPORT[here]


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_libraries_stay_in_their_rooms(path):
    here, libraries = room(path), {name.split(".")[0] for name in imports(path)}
    if here not in WITH_FRAMEWORKS:
        assert not libraries & FRAMEWORKS
    if here == "functional":
        mathematics = {"torch", "jaxtyping", "annotated_types", "stabledrl"}
        assert libraries <= mathematics | STANDARD_IN_FUNCTIONAL


def test_no_circles():
    order: list[str] = []
    left = {name: rooms - {name} for name, rooms in MAY_IMPORT.items()}
    while left:
        free = sorted(name for name, rooms in left.items() if rooms <= set(order))
        assert free, f"a circle among {sorted(left)}"
        order += free
        left = {name: rooms for name, rooms in left.items() if name not in order}
