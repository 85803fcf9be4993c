"""Which cells of a plan are submitted: by configuration, and within the budget."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hpcrl.errors import UsageError
from hpcrl.plan.before import read_before
from hpcrl.plan.directory import write_plan
from hpcrl.plan.make import UserChoices, make_plan
from hpcrl.spec.library import Library
from hpcrl.submit.selection import Budget, Choice, cells_where
from tests.builders import cells_of, planned, write_yaml
from tests.submit.test_submission import FakeSlurm, fake, sent, settle_all, study

__all__ = ["fake"]


def test_a_part_is_chosen_by_configuration(tmp_path: Path, fake: FakeSlurm) -> None:
    plan = planned(tmp_path / "plan", study(axes={"variant": ["a", "b"]}, seeds=3), "sol")
    of_b = {cell["id"] for cell in cells_of(plan) if cell["config"]["variant"] == "b"}
    assert sent(plan, fake, Choice(where=("variant=b", "seed=1", "seed=2"))).tasks == 2
    assert sent(plan, fake, Choice(where=("variant=b",))).tasks == 1
    with pytest.raises(UsageError, match="no cell agrees with --where variant=c"):  # not: all cells
        sent(plan, fake, Choice(where=("variant=c",)))
    outside = next(cell["id"] for cell in cells_of(plan) if cell["id"] not in of_b)
    with pytest.raises(UsageError, match=f"no cell agrees with --cell {outside} --where variant=b"):
        sent(plan, fake, Choice(cells=(outside,), where=("variant=b",)))
    with pytest.raises(UsageError, match="did you mean 'variant'"):
        sent(plan, fake, Choice(where=("varant=b",)))
    assert sent(plan, fake).tasks == 3


@pytest.mark.parametrize(
    ("values", "text", "cells"),
    [([True, False], "true", 1), ([1, 2], "1.0", 1), ([0.001, 0.01], "1e-3", 1), (["b", "x"], "B", 0)],
)
def test_values_of_where_are_written_as_in_a_study(tmp_path: Path, values: list[Any], text: str, cells: int) -> None:
    plan = planned(tmp_path / "plan", study(axes={"variant": values}), "sol")
    assert [cell.config["variant"] for _, cell in cells_where(plan, [f"variant={text}"])] == values[:cells]


@pytest.mark.parametrize("text", ["memory=8G", "memory=8192M", "memory=8192", "time=01:00:00", "time=3600"])
def test_resources_of_where_have_the_units_of_a_study(tmp_path: Path, fake: FakeSlurm, text: str) -> None:
    plan = planned(tmp_path / "plan", study(axes={"memory": ["8G", "4G"], "time": ["01:00:00", "00:20:00"]}), "sol")
    name = text.partition("=")[0]
    agreeing = [cell.resources[name] for _, cell in cells_where(plan, [text])]
    assert agreeing == [{"memory": 8192, "time": 3600}[name]] * 2
    with pytest.raises(UsageError, match=r"no cell agrees with --where memory=8$"):
        sent(plan, fake, Choice(where=("memory=8",)))


def test_the_budget_counts_all_attempts(tmp_path: Path, fake: FakeSlurm) -> None:
    plan = planned(tmp_path / "p", study(seeds=4, resources={"memory": "1G", "time": "01:00:00"}), "sol")
    with pytest.raises(UsageError, match="asks for up to 4 core-hours, over the 3 allowed"):
        sent(plan, fake, budget=Budget(core_hours=3))
    assert fake.submitted == []
    sent(plan, fake, budget=Budget(core_hours=4))
    settle_all(plan, fake, {0: "FAILED"})
    with pytest.raises(
        UsageError, match=r"asks for up to 5 core-hours \(4 of them for attempts so far\), over the 4 allowed"
    ):
        sent(plan, fake, budget=Budget(core_hours=4))


def test_the_budget_counts_the_attempts_of_older_generations(tmp_path: Path, fake: FakeSlurm) -> None:
    hours = {"memory": "1G", "time": "01:00:00"}
    plan = planned(tmp_path / "p", study(seeds=4, resources=hours), "sol")
    sent(plan, fake, budget=Budget(core_hours=4))
    settle_all(plan, fake, {})
    content = write_yaml(tmp_path / "more.yaml", study(seeds=6, resources=hours))
    write_plan(make_plan(Library(), "sol", str(content), UserChoices(account="lab"), read_before(plan)), plan)
    with pytest.raises(
        UsageError, match=r"asks for up to 6 core-hours \(4 of them for attempts so far\), over the 5 allowed"
    ):
        sent(plan, fake, budget=Budget(core_hours=5))
    assert sent(plan, fake, budget=Budget(core_hours=6)).tasks == 2
