from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcrl.errors import UsageError
from hpcrl.plan.limits import Demand, Stages, choose_cells_per_task, in_words, longest
from hpcrl.plan.make import PlanFiles, UserChoices, make_plan
from hpcrl.plan.placement import Placement
from hpcrl.spec.library import Library
from tests.builders import command_study, write_yaml

CIRRUS = Library().cluster("cirrus")
STANDARD = Placement("standard", "standard", "standard", 1, 1, 0, False)  # 256 jobs may wait, two days each


def planned_on(
    tmp_path: Path, cluster: str | dict[str, Any], cells_per_task: int | None = None, **study: Any
) -> PlanFiles:
    if isinstance(cluster, dict):
        cluster = str(write_yaml(tmp_path / "site.yaml", cluster))
    name = str(write_yaml(tmp_path / "s.yaml", command_study(["true"], **study)))
    return make_plan(Library(), cluster, name, UserChoices(account="lab", cells_per_task=cells_per_task))


def of_time(time: str) -> dict[str, Any]:
    return {"memory": "1G", "time": time}


def directives(files: PlanFiles, job: int = 0) -> dict[str, str]:
    text = str(files.files[files.plan.cell_jobs()[job].script])
    return dict(re.findall(r"^#SBATCH --([a-z-]+)=(.*)$", text, re.MULTILINE))


def test_a_plan_over_the_limit_of_its_qos_runs_several_cells_in_a_task(tmp_path: Path) -> None:
    files = planned_on(tmp_path, "cirrus", seeds=600)
    (job,) = files.plan.cell_jobs()
    assert (job.count, job.cells_per_task, job.tasks) == (600, 3, 200)
    found = directives(files)
    # 64 at once, as the profile says; a cell asks for ten minutes.
    assert (found["array"], found["time"]) == ("0-199%64", "00:30:00")
    assert job.resources["time"] == 600
    assert files.plan.totals["core_hours"] == 100
    assert files.plan.limits == {"submitted": None, "queued": {"standard": 256}}
    assert in_words(files.plan) == [
        "256 jobs may wait in QOS standard: 3 cells run one after another in each array task"
    ]


@pytest.mark.parametrize(
    ("chain", "notify", "cells", "number"),
    [
        ("parallel", None, 256, 1),
        ("parallel", None, 257, 2),
        ("parallel", ["true"], 256, 2),
        ("staged", None, 253, 1),
        ("staged", None, 254, 2),
        ("staged", ["true"], 253, 2),
    ],
)
def test_stage_jobs_wait_in_the_same_queue(
    tmp_path: Path, chain: str, notify: list[str] | None, cells: int, number: int
) -> None:
    changes = {"notify": notify} if notify else {}
    plan = planned_on(tmp_path, "cirrus", seeds=cells, chain=chain, **changes).plan
    assert [job.cells_per_task for job in plan.cell_jobs()] == [number]
    assert bool(in_words(plan)) == (number > 1)


def test_cells_too_long_to_share_a_task_are_fed_in_parts(tmp_path: Path) -> None:
    assert planned_on(tmp_path, "cirrus", seeds=300, resources=of_time("1-00:00:00")).plan.jobs[0].cells_per_task == 2
    plan = planned_on(tmp_path, "cirrus", seeds=300, resources=of_time("1-00:00:01")).plan
    # One of the 256 is the job that feeds the next part.
    assert [(job.count, job.cells_per_task) for job in plan.cell_jobs()] == [(255, 1), (45, 1)]
    assert in_words(plan) == ["256 jobs may wait in QOS standard, and the plan has 300: it is submitted in parts"]
    staged = planned_on(tmp_path, "cirrus", seeds=300, resources=of_time("1-12:00:00"), chain="staged").plan
    assert [job.count for job in staged.cell_jobs()] == [252, 48]


def test_the_scheduler_s_own_limit(tmp_path: Path) -> None:
    site = {"extends": "sol", "scheduler": {"max_submitted": 100}}
    plan = planned_on(tmp_path, site, seeds=250, resources=of_time("01:00:00")).plan
    assert [job.cells_per_task for job in plan.cell_jobs()] == [3]
    assert in_words(plan) == ["100 jobs may wait: 3 cells run one after another in each array task"]
    assert plan.limits == {"submitted": 100, "queued": {}}


def test_short_cells_make_room_for_long_ones(tmp_path: Path) -> None:
    times = {"axes": {"time": ["01:00:00", "1-16:00:00"]}, "seeds": 200}
    plan = planned_on(tmp_path, "cirrus", **times).plan
    assert [(job.cells_per_task, job.tasks) for job in plan.cell_jobs()] == [(4, 50), (1, 200)]
    assert in_words(plan) == [
        "256 jobs may wait in QOS standard: up to 4 cells run one after another in each array task"
    ]


def test_a_number_given_by_hand(tmp_path: Path) -> None:
    htc = {"placement": {"sol": {"partition": "htc"}}}
    files = planned_on(tmp_path, "sol", 4, seeds=10, resources=of_time("00:30:00"))
    assert (directives(files)["array"], directives(files)["time"]) == ("0-2", "02:00:00")
    assert in_words(files.plan) == ["4 cells run one after another in each array task"]
    # No more than there are: the rest of the time would be asked for in vain.
    assert directives(planned_on(tmp_path, "sol", 400, seeds=2, resources=of_time("00:30:00")))["time"] == "01:00:00"
    with pytest.raises(
        UsageError,
        match=r"--cells-per-task 9: 9 cells of 00:30:00 need 04:30:00, but the maximum of partition htc, QOS public, is 04:00:00: give at most 8",
    ):
        planned_on(tmp_path, "sol", 9, seeds=10, resources=of_time("00:30:00"), **htc)
    fed = planned_on(tmp_path, "cirrus", 1, seeds=300).plan
    assert "it is submitted in parts" in in_words(fed)[0]


def test_a_limit_too_small_for_one_part(tmp_path: Path) -> None:
    tiny = {"extends": "cirrus", "qos": {"standard": {"max_queued": 4}}}
    asked: dict[str, Any] = {"seeds": 10, "resources": of_time("1-12:00:00")}
    with pytest.raises(
        UsageError,
        match=r"QOS standard lets 4 jobs of one user wait, but one array task with its stage jobs "
        r"\(environments, feed, collect, report\) needs 5: plan with --chain parallel, choose another QOS",
    ):
        planned_on(tmp_path, tiny, chain="staged", **asked)
    assert [job.count for job in planned_on(tmp_path, tiny, **asked).plan.cell_jobs()] == [3, 3, 3, 1]
    # What is within the limit needs no parts.
    assert planned_on(tmp_path, tiny, chain="staged", seeds=1).plan.totals["cells"] == 1
    one = {"extends": "sol", "scheduler": {"max_submitted": 1}}
    with pytest.raises(UsageError, match=r"sol lets 1 job of one user wait, .*\(feed\) needs 2"):
        planned_on(tmp_path, one, seeds=3, resources=of_time("04:00:00"), placement={"sol": {"partition": "htc"}})


def test_arrays_are_split_at_the_scheduler_s_limit_too(tmp_path: Path) -> None:
    site = {"extends": "sol", "scheduler": {"max_array_size": 4}}
    plan = planned_on(tmp_path, site, 3, seeds=20).plan
    assert [(job.first, job.count, job.tasks) for job in plan.cell_jobs()] == [(0, 12, 4), (12, 8, 3)]


@given(
    sizes=st.lists(st.tuples(st.integers(1, 400), st.integers(1, 48)), min_size=1, max_size=4),
    beside=st.integers(0, 3),
    limit=st.integers(5, 300),
)
def test_the_number_is_the_smallest_that_does(sizes: list[tuple[int, int]], beside: int, limit: int) -> None:
    qos = {**CIRRUS.qos, "standard": CIRRUS.qos["standard"].model_copy(update={"max_queued": limit})}
    profile = CIRRUS.model_copy(update={"qos": qos})
    demands = [Demand(cells, STANDARD, hours * 3600) for cells, hours in sizes]
    stages = Stages({f"s{number}": "standard" for number in range(beside)} | {"feed": "standard"})
    most = [min(each.cells, longest(profile, STANDARD) // each.time) for each in demands]

    def tasks(number: int) -> int:
        return sum(-(-each.cells // min(number, upper)) for each, upper in zip(demands, most, strict=True))

    fitting = next((number for number in range(1, max(most) + 1) if tasks(number) + beside <= limit), None)
    chosen = choose_cells_per_task(profile, demands, stages, None)
    assert chosen == [min(fitting or 1, upper) for upper in most]
