"""What studies set for all of their cells: plans that differ in it are no repeats of each other."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import hpcrl
from hpcrl.collect.merge import collect
from hpcrl.formats import plan as plan_format
from hpcrl.plan.before import read_before
from hpcrl.plan.directory import write_plan
from hpcrl.plan.make import UserChoices, make_plan
from hpcrl.report.baseline import compare, judge
from hpcrl.report.groups import lines
from hpcrl.report.sections import Section
from hpcrl.report.settings import in_words
from hpcrl.report.write import make_sections, read_cells
from hpcrl.spec.library import Library
from tests.builders import cells_of, command_study, dqn_study, planned, write_record, write_yaml
from tests.collect.gathering import no_slurm


def study(steps: int | None = 1500, **changes: Any) -> dict[str, Any]:
    """A study of two seeds."""
    made = dqn_study(**{"seeds": 2} | changes)
    hyperparameters = {"total_steps": steps} if steps else {}
    return made | {"workload": made["workload"] | {"hyperparameters": hyperparameters | {"hidden": [16, 8]}}}


def ran(plan: Path, dataset: Path, *more: Path) -> pd.DataFrame:
    """Write a record for each cell of some plans, and return the rows of the report on all."""
    for directory in (plan, *more):
        for number, cell in enumerate(cells_of(directory)):
            write_record(directory, cell, f"local-{directory.name}-{number}_0", header={"started": float(number)})
    collect([plan, *more], dataset, no_slurm())
    return read_cells(dataset, None)


def names(rows: pd.DataFrame) -> dict[str, int]:
    return {line.what: line.cells for line in lines(rows)}


def test_plans_that_differ_in_a_setting_are_lines_of_their_own(tmp_path: Path) -> None:
    short, long = planned(tmp_path / "a", study()), planned(tmp_path / "b", study(3000))
    rows = ran(short, tmp_path / "d", long)
    assert names(rows) == {"NumPy eager total_steps 1500": 2, "NumPy eager total_steps 3000": 2}
    (section,) = sections(tmp_path / "d", rows)
    assert "4 cells in all: total steps (1500, 3000)." in section.compared
    assert "All with algorithm DQN, environment CartPole-v1, hidden 16 8." in section.compared
    assert "total_steps" not in "".join(hpcrl.load(tmp_path / "d")["config"])  # which is the cell's own


def sections(dataset: Path, rows: pd.DataFrame) -> list[Section]:
    return list(make_sections(dataset, rows, Library([])))


def test_two_plans_of_equal_settings_are_repeats(tmp_path: Path) -> None:
    plans = [planned(tmp_path / name, study(title=name)) for name in ("a", "b")]
    rows = ran(plans[0], tmp_path / "d", plans[1])
    assert names(rows) == {"NumPy eager": 2}
    assert set(rows["repeats"]) == {2}


def test_the_generations_of_a_plan_have_settings_of_their_own(tmp_path: Path) -> None:
    plan = planned(tmp_path / "p", study())
    ran(plan, tmp_path / "d")
    longer = write_yaml(tmp_path / "longer.yaml", study(3000))
    write_plan(make_plan(Library(), "workstation", str(longer), UserChoices(account="lab"), read_before(plan)), plan)
    for number, cell in enumerate(plan_format.read_cells(plan)):
        write_record(plan, asdict(cell), f"local-new-{number}_0", header={"started": 100.0 + number})
    collect([plan], tmp_path / "d", no_slurm())
    assert names(read_cells(tmp_path / "d", None)) == {
        "NumPy eager total_steps 1500": 2,
        "NumPy eager total_steps 3000": 2,
    }


def test_variables_and_commands_are_settings(tmp_path: Path) -> None:
    made = command_study(["python", "bench.py", "--size", "5"], seeds=2)
    other = made | {"workload": made["workload"] | {"env": {"THREADS": "2"}}}
    rows = ran(planned(tmp_path / "a", made), tmp_path / "d", planned(tmp_path / "b", other))
    assert names(rows) == {"variant a": 2, "env.THREADS 2 variant a": 2}
    assert "All with command python bench.py --size 5." in in_words(rows, steps=False)


def test_the_default_number_of_steps_is_that_of_the_runs(tmp_path: Path) -> None:
    rows = ran(planned(tmp_path / "a", study(None)), tmp_path / "d")
    told = in_words(rows.assign(steps=50_000.0), steps=True)
    assert "total steps 50,000" in told
    assert "total steps" not in in_words(rows.assign(steps=[50_000.0, 40_000.0]), steps=True)


def test_another_setting_than_before_cannot_be_judged(tmp_path: Path) -> None:
    old, new = (
        ran(planned(tmp_path / name, study(steps)), tmp_path / f"d-{name}")
        for name, steps in (("a", 1500), ("b", 3000))
    )
    changes = judge(compare(new, old))
    assert changes
    assert {(change.verdict, change.why) for change in changes} == {
        ("cannot be judged", "total_steps was 1,500 and is 3,000")
    }
    assert not [change for change in judge(compare(old, old)) if "total_steps" in change.why]


@pytest.mark.parametrize("unknown", [0, 1])
def test_datasets_of_older_versions_are_compared_as_before(tmp_path: Path, unknown: int) -> None:
    """They do not say what was set."""
    pair = [
        ran(planned(tmp_path / name, study(steps)), tmp_path / f"d-{name}")
        for name, steps in (("a", 1500), ("b", 3000))
    ]
    pair[unknown] = pair[unknown].assign(settings=None)
    assert not [change for change in judge(compare(*pair)) if "total_steps" in change.why]
    assert in_words(pair[unknown], steps=True) == ""


def test_cells_of_the_plan_that_have_not_been_run_are_counted(tmp_path: Path) -> None:
    plan = planned(tmp_path / "p", study(seeds=5))
    for number, cell in enumerate(cells_of(plan)[:2]):
        write_record(plan, cell, f"local-{number}_0")
    collect([plan], tmp_path / "d", no_slurm())
    (section,) = sections(tmp_path / "d", read_cells(tmp_path / "d", None))
    assert "3 of the 5 cells of its plan have not been run." in section.failed
    whole = ran(planned(tmp_path / "q", study()), tmp_path / "e")
    assert "not been run" not in sections(tmp_path / "e", whole)[0].failed
