"""docs/algorithms.md and `hpcrl algorithm` say what the catalogue says."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path

import pytest

from hpcrl.catalogue.environments import OWN_ENVIRONMENTS
from hpcrl.catalogue.fields import default_of
from hpcrl.catalogue.registry import algorithms
from hpcrl.catalogue.training import CountingSettings
from hpcrl.errors import written
from tests.conftest import Shown

GUIDE = (Path(__file__).parents[2] / "docs/algorithms.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", list(algorithms()))
def test_the_guide_has_each_hyperparameter_with_its_default(name: str) -> None:
    algorithm = algorithms()[name]
    section = GUIDE.partition(f"\n## {algorithm.title}\n")[2].partition("\n## ")[0]
    defaults = dict(re.findall(r"\| `(\w+)` \| ([^|]+?) (?=\|)", section))
    shared = {field.name for field in fields(CountingSettings)}
    for field in fields(algorithm.settings):
        assert f"`{field.name}`" in section or (field.name in shared and f"`{field.name}`" in GUIDE), field.name
        if field.name in defaults:
            assert defaults.pop(field.name) == default_of(field), field.name
    assert defaults == {}
    assert len(section) > 500


def test_the_guide_has_each_option_of_an_environment_with_its_default() -> None:
    described = OWN_ENVIRONMENTS["Doors-v0"]
    assert described.options is not None
    section = GUIDE.partition("\n## Doors\n")[2].partition("\n## ")[0]
    defaults = dict(re.findall(r"\n\| `(\w+)` \| (\S+) \|", section))
    assert defaults == {field.name: written(field.default) for field in fields(described.options)}
    assert f"{described.shape[0]} numbers" in section and f"after {described.limit} steps" in section


def test_the_command_line_shows_them(hpcrl: Callable[..., Shown]) -> None:
    listed = hpcrl("algorithm", "list").out
    assert "ppo\tPPO\tdiscrete\tnumpy, torch, tensorflow, jax, mxnet" in listed
    shown = hpcrl("algorithm", "show", "ppo").out
    assert "gae_lambda\t0.8\ta number from 0 to 1" in shown
    assert "stepping\tsync\tsync or processes" in shown
    facts = json.loads(hpcrl("algorithm", "show", "dqn", "--json").out)
    assert facts["batch_size"]["default"] == 64
    wrong = hpcrl("algorithm", "show", "pppo")
    assert (wrong.code, wrong.err) == (2, "hpcrl: no algorithm 'pppo'; did you mean 'ppo'?\n")
