"""The list of kept mistakes cannot rot: each can still be planted, and names tests that there are."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

TOOL = Path(__file__).parents[1] / "tools/mutants/__main__.py"


def tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location("mutants", TOOL)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["mutants"] = module
    spec.loader.exec_module(module)
    return module


def test_each_kept_mistake_can_be_planted() -> None:
    module = tool()
    mutants = list(module.kept())
    assert [problem for each in mutants if (problem := each.problem())] == []
    assert len(mutants) >= 100
    assert len({each.breaks for each in mutants}) == len(mutants)
    assert not [each.breaks for each in mutants if each.old == each.new]
    names = {test.partition("[")[0] for each in mutants for test in each.tests}
    for name in names:
        file, _, test = name.partition("::")
        text = (module.ROOT / file).read_text(encoding="utf-8")
        assert f"def {test}(" in text or not test, name


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ("value = 1", "value = 2", None),
        ("value = 3", "value = 2", "m.py: expected the text once, got 0 times: 'value = 3'"),
        ("value", "number", "m.py: expected the text once, got 2 times: 'value'"),
        ("value = 1", "value = (", "m.py: the result is not valid Python"),
    ],
)
def test_what_cannot_be_planted_is_said(tmp_path: Path, old: str, new: str, problem: str | None) -> None:
    (tmp_path / "m.py").write_text("value = 1\nprint(value)\n")
    found = tool().Mutant("a", "m.py", old, new, "b", ()).problem(tmp_path)
    assert found == problem if problem is None else found.startswith(problem)


def test_what_survives_is_told_from_what_is_caught(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    module = tool()
    (tmp_path / "m.py").write_text("def double(x):\n    return 2 * x\n")
    (tmp_path / "test_m.py").write_text("import m\n\ndef test_double():\n    assert m.double(2) == 4\n")
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    wrong = module.Mutant("a", "m.py", "2 * x", "3 * x", "it triples", ("test_m.py",))
    missed = module.Mutant("a", "m.py", "2 * x", "x * x", "it squares", ("test_m.py",))
    assert module._plant_all(tmp_path, [wrong, missed]) == [missed]
    said = capfd.readouterr().out
    assert "1/2 caught" in said and "2/2 SURVIVED" in said and "2 planted, 1 caught, 1 survived" in said
    assert (tmp_path / "m.py").read_text() == "def double(x):\n    return 2 * x\n"
