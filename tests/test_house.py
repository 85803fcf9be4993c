"""The rules of the code that no other tool knows: how long the constructors of learners are, and where a framework or an algorithm is named."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from hpcrl.catalogue.registry import algorithms, frameworks

ROOT = Path(__file__).parents[1]
NAMES = {*algorithms(), *frameworks()}
# Files that are about a framework or an algorithm; names elsewhere would be one more place for a new one.
ABOUT_THEM = (
    "hpcrl/catalogue/algorithms/", "hpcrl/catalogue/frameworks/", "hpcrl/rl/algorithms/", "hpcrl/rl/specification/",
    "hpcrl/rl/frameworks/",
    # What papers compare.
    "hpcrl/report/figures/papers/",
)  # fmt: skip
# Where a name is written all the same, and why.
WRITTEN = {
    "hpcrl/formats/facts.py": {"numpy"},  # the format of agents
    "hpcrl/spec/study.py": {"numpy"},  # the same
    "hpcrl/catalogue/training.py": {
        "numpy",
        "jax",
    },  # a value of the hyperparameter `acting`; what compiles environments
    "hpcrl/rl/loops/acting.py": {"numpy"},  # the same
    "hpcrl/spec/environment.py": {"numpy"},  # the package, which every environment has
    "hpcrl/run/standing.py": {"numpy"},  # the same
    "hpcrl/plan/environments.py": {"numpy"},  # the software environment of cells without a framework
    "hpcrl/rl/smoke.py": {"dqn"},  # what tries out an environment trains
    "hpcrl/rl/usability.py": {"dqn"},  # what is measured of each framework
    "hpcrl/report/design.py": set(frameworks()),  # their colours
}


def files() -> list[str]:
    return sorted(str(path.relative_to(ROOT)) for path in (ROOT / "hpcrl").rglob("*.py"))


def named(tree: ast.AST) -> Iterator[str]:
    """Give each name of a framework or an algorithm that is a text by itself, or a module of hpcrl that is imported."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and node.value in NAMES:
            yield str(node.value)
        elif isinstance(node, ast.ImportFrom) and str(node.module).startswith("hpcrl."):
            imported = {*str(node.module).split("."), *(alias.name for alias in node.names)}
            if imported & {"algorithms", "frameworks", "specification"}:
                yield from imported & NAMES


def test_a_framework_or_an_algorithm_is_named_where_it_belongs() -> None:
    found: dict[str, set[str]] = {}
    for file in files():
        if not file.startswith(ABOUT_THEM) and (names := set(named(ast.parse((ROOT / file).read_text())))):
            found[file] = names
    assert found == WRITTEN


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("if framework == 'jax': pass", ["jax"]),
        ("from hpcrl.rl.algorithms.ppo import algorithm", ["ppo"]),
        ("from hpcrl.rl.frameworks import torch", ["torch"]),
        ("from hpcrl.rl.envs.jax.world import World", []),
        ("import numpy; '''jax is a word of this sentence'''", []),
    ],
)
def test_names_are_found(text: str, names: list[str]) -> None:
    assert list(named(ast.parse(text))) == names


@pytest.mark.parametrize("framework", list(frameworks()))
def test_a_learner_is_made_in_few_lines(framework: str) -> None:
    tree = ast.parse((ROOT / f"hpcrl/rl/frameworks/{framework}/core.py").read_text())
    (learner,) = (node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == "Learner")
    (made,) = (node for node in learner.body if isinstance(node, ast.FunctionDef) and node.name == "__init__")
    assert made.end_lineno is not None and made.end_lineno - made.lineno < 25
