from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from hpcrl.errors import UsageError
from hpcrl.formats.finding import find_cell
from hpcrl.formats.plan import VERSION, every_cell, find_job, generations, old_manifest, read_cells, read_plan
from tests.builders import command_study, planned


@pytest.fixture
def plan(tmp_path: Path) -> Path:
    return planned(tmp_path / "p", command_study(["true"], seeds=3), "sol")


def extended(plan: Path) -> Path:
    """Make the plan's manifest that of an older generation, and give it a next one with its last two cells."""
    content = json.loads((plan / "plan.json").read_text())
    shutil.copy(plan / "plan.json", plan / old_manifest(content["generation"]))
    lines = (plan / content["cells_file"]).read_text().splitlines(keepends=True)[-2:]
    generation = content["generation"] + 1
    content |= {"generation": generation, "cells_file": f"cells-{generation}.jsonl"}
    job = content["jobs"][0]
    job |= {"name": f"job-g{generation}", "cells_file": content["cells_file"], "count": len(lines)}
    (plan / content["cells_file"]).write_text("".join(lines))
    (plan / "plan.json").write_text(json.dumps(content))
    return plan


def test_a_manifest_is_read_as_it_was_written(plan: Path) -> None:
    text = (plan / "plan.json").read_text()
    assert read_plan(plan).to_text() == text
    content = json.loads(text)
    assert content["version"] == VERSION == 2
    assert {"generation", "cells_file", "worker", "limits", "reused"} <= set(content)
    assert {"cells_file", "cells_per_task", "max_time", "max_memory"} <= set(content["jobs"][0])


def test_an_array_task_has_several_cells(plan: Path) -> None:
    job = read_plan(plan).jobs[0]
    counts = {(3, 1): 3, (3, 2): 2, (4, 2): 2, (1, 5): 1}
    for (cells, by), tasks in counts.items():
        assert type(job)(**vars(job) | {"count": cells, "cells_per_task": by}).tasks == tasks


def test_jobs_are_found_in_the_generation_that_has_them(plan: Path) -> None:
    first = read_plan(plan).jobs[0].name
    extended(extended(plan))
    assert generations(plan) == [2, 1]
    assert [find_job(plan, name)[0].generation for name in (first, "job-g2", "job-g3", "mine-feed")] == [1, 2, 3, 3]
    _, job = find_job(plan, first)
    assert [cell.config["seed"] for cell in read_cells(plan, job)] == [1, 2, 3]
    with pytest.raises(UsageError, match="no job 'job-g4'; did you mean 'job-g3'"):
        find_job(plan, "job-g4")


def test_cells_are_those_of_the_generation(plan: Path) -> None:
    extended(plan)
    now = read_plan(plan)
    assert [cell.config["seed"] for cell in read_cells(plan)] == [2, 3]
    assert [cell.config["seed"] for cell in read_cells(plan, now)] == [2, 3]
    assert [cell.config["seed"] for cell in read_cells(plan, read_plan(plan, 1))] == [1, 2, 3]
    assert [cell.config["seed"] for _, cell in every_cell(plan, now)] == [2, 3, 1]
    last = list(read_cells(plan))[1]
    cell, job, index = find_cell(plan, now, last.id)
    assert (cell, job.name, index) == (last, "job-g2", 1)


def test_a_name_that_only_looks_like_an_older_manifest(plan: Path) -> None:
    for name in ("plan-x.json", "plan-0.json", "plan-1.json.bak", "plan-99999999999.json"):
        (plan / name).write_text("{")
    assert generations(plan) == []


def test_an_older_manifest_that_is_damaged_is_named(plan: Path) -> None:
    extended(plan)
    (plan / "plan-1.json").write_text("{")
    with pytest.raises(UsageError, match=r"plan-1\.json: is damaged"):
        list(every_cell(plan, read_plan(plan)))
