from __future__ import annotations

from pathlib import Path

import pytest

from hpcrl.collect.merge import collect
from hpcrl.errors import SpecError, UsageError
from hpcrl.formats.plan import read_cells, read_plan
from hpcrl.plan.make import PlanFiles, UserChoices, make_plan
from hpcrl.plan.reuse import completed_cells
from hpcrl.slurm.client import Slurm
from hpcrl.spec.library import Library
from tests.builders import cells_of, command_study, dqn_study, planned, write_record, write_yaml

STUDY = command_study(["true"], seeds=4)


@pytest.fixture
def other(tmp_path: Path) -> Path:
    """A plan with records: the first cell completed, the second failed and then completed, the third failed, the last runs."""
    plan = planned(tmp_path / "other", STUDY)
    first, second, third, last = cells_of(plan)
    write_record(plan, first)
    write_record(plan, second, "a-1", outcome="failed")
    write_record(plan, second, "a-2")
    write_record(plan, third, outcome="failed")
    write_record(plan, last, outcome=None)
    return plan


def reusing(tmp_path: Path, *places: Path) -> PlanFiles:
    study = write_yaml(tmp_path / "s.yaml", STUDY)
    return make_plan(Library(), "sol", str(study), UserChoices(account="lab"), None, completed_cells(places))


def seeds(files: PlanFiles, directory: Path) -> list[int]:
    from hpcrl.plan.directory import write_plan

    write_plan(files, directory)
    return [cell.config["seed"] for cell in read_cells(directory)]


def test_completed_cells_of_a_plan_are_left_out(tmp_path: Path, other: Path) -> None:
    files = reusing(tmp_path, other)
    assert seeds(files, tmp_path / "p") == [3, 4]
    ids = [each["id"] for each in cells_of(other)]
    assert read_plan(tmp_path / "p").reused == {ids[0]: str(other), ids[1]: str(other)}
    assert (files.plan.totals["cells"], files.plan.totals["reused"]) == (2, 2)
    assert files.plan.totals["core_hours"] == round(2 / 6, 4)


def test_marks_of_attempts_count_before_records(tmp_path: Path, other: Path) -> None:
    ids = [each["id"] for each in cells_of(other)]
    (other / "attempts").mkdir()
    for name in (
        f"{ids[2]}.1-0", f"{ids[2]}.1-0.failed", f"{ids[2]}.2-0", f"{ids[2]}.2-0.preempted", f"{ids[2]}.2-1.completed",
        f"{ids[3]}.1-0", f"{ids[3]}.1-0.completed", f"{ids[3]}.1-0.failed",  # two ranks of one attempt
    ):  # fmt: skip
        (other / "attempts" / name).touch()
    assert completed_cells([other]) == {ids[2]: str(other)}


def test_every_rank_of_an_attempt_must_have_completed(tmp_path: Path) -> None:
    plan = planned(tmp_path / "other", STUDY)
    first, second, third, _ = cells_of(plan)
    for rank in (0, 1):
        write_record(plan, first, rank=rank, ranks=2)
        write_record(plan, second, rank=rank, ranks=2, outcome="failed" if rank else "completed")
    write_record(plan, third, rank=0, ranks=2)
    (plan / "records" / "damaged.rec").write_bytes(b"x")
    assert set(completed_cells([plan])) == {first["id"]}


def test_completed_cells_of_a_dataset_are_left_out(tmp_path: Path, other: Path) -> None:
    dataset = tmp_path / "dataset"
    collect([other], dataset, Slurm())
    files = reusing(tmp_path, dataset)
    assert seeds(files, tmp_path / "p") == [3, 4]
    assert set(files.plan.reused.values()) == {str(dataset)}


def test_several_places(tmp_path: Path, other: Path) -> None:
    more = planned(tmp_path / "more", STUDY)
    write_record(more, cells_of(more)[0])
    write_record(more, cells_of(more)[3])
    files = reusing(tmp_path, other, more)
    assert seeds(files, tmp_path / "p") == [3]
    assert sorted(files.plan.reused.values()) == sorted([str(other), str(other), str(more)])


def test_nothing_is_left_to_plan(tmp_path: Path) -> None:
    done = planned(tmp_path / "done", STUDY)
    for cell in cells_of(done):
        write_record(done, cell)
    with pytest.raises(UsageError, match=r"all its 4 cells are completed in .*done: leave out --reuse"):
        reusing(tmp_path, done)


def test_neither_a_plan_nor_a_dataset(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"--reuse .*: expected a plan directory or a dataset, got neither"):
        completed_cells([tmp_path])


def test_a_goal_is_part_of_what_a_cell_computes_only_where_the_training_stops_at_it(tmp_path: Path) -> None:
    def ids(goal: float, stop: bool) -> list[str]:
        study = dqn_study(goal=goal)
        study["workload"]["hyperparameters"] |= {"stop_at_goal": stop}
        return [each["id"] for each in cells_of(planned(tmp_path / f"{goal}-{stop}", study))]

    assert ids(100, stop=False) == ids(200, stop=False)
    assert ids(100, stop=True) != ids(200, stop=True)


def test_stopping_at_the_goal_needs_one(tmp_path: Path) -> None:
    study = dqn_study(goal=None, axes={"framework": ["numpy"], "stop_at_goal": [False, True]})
    with pytest.raises(SpecError, match="`stop_at_goal` needs a `goal`: give the return"):
        planned(tmp_path / "p", study)


def test_the_cells_of_a_search_are_never_reused(tmp_path: Path) -> None:
    """The journal with what its trials drew belongs to the plan."""
    search = {"trials": 2, "space": {"learning_rate": {"low": 1e-4, "high": 1e-2}}}
    other = planned(tmp_path / "other", dqn_study(search=search))
    for cell in cells_of(other):
        write_record(other, cell)
    collect([other], tmp_path / "d", Slurm())
    done = completed_cells([tmp_path / "d"])
    assert len(done) == 3
    file = write_yaml(tmp_path / "study.yaml", dqn_study(search=search))
    files = make_plan(Library(), "workstation", str(file), UserChoices(), completed=done)
    assert (files.plan.totals["cells"], files.plan.totals["reused"]) == (3, 0)
