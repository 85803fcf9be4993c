"""One plan that was submitted from several directories: made again on another day or machine, or copied."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import hpcrl
from hpcrl.collect.merge import collect
from hpcrl.formats import plan as plan_format
from hpcrl.formats.ledger import FILE, Ledger
from hpcrl.formats.plan import RECORDS, read_plan
from hpcrl.formats.submission import SUBMISSIONS, Submission
from hpcrl.plan.before import read_before
from hpcrl.plan.directory import write_plan
from hpcrl.plan.make import UserChoices, make_plan
from hpcrl.slurm.client import Completed, Slurm
from hpcrl.spec.library import Library
from tests.builders import cells_of, dqn_study, granted, planned, write_record, write_yaml
from tests.collect.gathering import gathered, no_slurm


def submitted(plan: Path, job_id: str, attempt: int = 1, task: int = 0) -> Submission:
    """Note in the ledger of a directory that Slurm has its one cell, or one of them, as this job."""
    ledger = Ledger(plan, create=True)
    made = ledger.intend(granted(plan, str(task), attempt))
    ledger.submitted(made.token, job_id)
    ledger.close()
    return made


def scheduler(*jobs: tuple[Submission, str, str]) -> Slurm:
    """Slurm with some jobs of one task: each the submission, the job's id and its state."""

    def answer(arguments: Sequence[str], cwd: Any, timeout: float) -> Completed:
        names = {name for word in arguments if word.startswith("--name=") for name in word[7:].split(",")}
        lines = []
        for made, job_id, state in jobs:
            if "--noconvert" in arguments:
                lines.append(f"{job_id}_0|htc|00:00:30||500|c1")
            elif made.name in names and "squeue" in arguments and state == "RUNNING":
                lines.append(f"{job_id}_0|RUNNING|None|c1|{made.name}")
            elif made.name in names and "sacct" in arguments and state != "RUNNING":
                lines.append(f"{job_id}_0|{state}|0:0|9|htc|c1|{made.name}")
        return Completed(0, "".join(f"{line}\n" for line in lines), "")

    return Slurm(answer)


def again(plan: Path, directory: Path) -> Path:
    """Make a plan again, as on another day or machine."""
    shutil.copytree(plan, directory)
    assert read_plan(plan).id == read_plan(directory).id
    return directory


def rows_of(dataset: Path) -> pd.DataFrame:
    """Return the rows of the study, without those of another one."""
    return hpcrl.load(dataset).query("study == 'short'").reset_index(drop=True)


@pytest.mark.parametrize(
    "calls",
    [[["first", "second"]], [["first"], ["second"]], [["second"], ["first"]], [["first"], ["other"], ["second"]]],
    ids=["one call", "two calls", "the newer one first", "another plan between them"],
)
def test_each_directory_keeps_its_submissions(tmp_path: Path, calls: list[list[str]]) -> None:
    """Numbers of submissions and attempts begin at 1 in each of them."""
    first = planned(tmp_path / "first", dqn_study(), "sol")
    second = again(first, tmp_path / "second")
    other = planned(tmp_path / "other", dqn_study(name="other"), "sol")
    (cell,) = cells_of(first)
    oldest = submitted(first, "7")
    retry = submitted(first, "8", 2)
    newest = submitted(second, "9")
    assert (oldest.number, retry.number, newest.number) == (1, 2, 1)
    write_record(first, cell, "7_0-0", outcome="failed", reason="it broke")
    write_record(first, cell, "8_0-0", outcome=None)
    write_record(other, cells_of(other)[0])
    slurm = scheduler((oldest, "7", "FAILED"), (retry, "8", "RUNNING"), (newest, "9", "NODE_FAIL"))
    for names in calls:
        collect([tmp_path / name for name in names], tmp_path / "d", slurm)
    rows = rows_of(tmp_path / "d")
    assert list(rows["attempt"]) == ["7_0-0", "8_0-0", "9_0"]
    assert list(rows["outcome"]) == ["failed", "running", "node_fail"]
    assert list(rows["latest"]) == [False, False, True]
    assert list(rows["attempt_number"]) == [1, 2, 3]
    assert list(rows["submission"]) == [oldest.token, retry.token, newest.token]
    assert list(rows["slurm_state"]) == ["FAILED", "RUNNING", "NODE_FAIL"]
    assert list(rows["slurm_cpu_seconds"]) == [30, 30, 30]
    collect([first, second, other], tmp_path / "whole", slurm)
    pd.testing.assert_frame_equal(rows_of(tmp_path / "whole"), rows, check_dtype=False)


@pytest.mark.parametrize("calls", [[["a", "b"]], [["a"], ["b"]], [["b"], ["a"]]])
def test_what_a_copy_leaves_to_the_original_stays_the_original_s(tmp_path: Path, calls: list[list[str]]) -> None:
    original = planned(tmp_path / "a", dqn_study(), "sol")
    made = submitted(original, "7")
    copy = again(original, tmp_path / "b")
    ledger = Ledger(copy)
    ledger.leave_to(str(original))
    ledger.close()
    for names in calls:
        collect([tmp_path / name for name in names], tmp_path / "d", scheduler((made, "7", "NODE_FAIL")))
    (row,) = hpcrl.load(tmp_path / "d").to_dict("records")
    assert (row["attempt"], row["outcome"], row["submission"]) == ("7_0", "node_fail", made.token)


@pytest.mark.parametrize(
    ("state", "silent", "before", "after"),
    [
        ("TIMEOUT", True, "timeout", "timeout"),
        ("TIMEOUT", False, "timeout", "timeout"),
        ("RUNNING", True, "running", "running"),
        ("RUNNING", False, "running", "lost"),
    ],
)
def test_an_end_stays_known_when_slurm_forgets_it_or_is_silent(
    tmp_path: Path, state: str, silent: bool, before: str, after: str
) -> None:
    plan = planned(tmp_path / "p", dqn_study(), "sol")
    made = submitted(plan, "7")
    write_record(plan, cells_of(plan)[0], "7_0-0", outcome=None)
    collect([plan], tmp_path / "d", scheduler((made, "7", state)))
    assert list(hpcrl.load(tmp_path / "d")["outcome"]) == [before]
    for path in (*(plan / RECORDS).iterdir(), plan / SUBMISSIONS / made.token):
        os.utime(path, (time.time() - 90,) * 2)
    collect([plan], tmp_path / "d", no_slurm() if silent else scheduler())
    rows = hpcrl.load(tmp_path / "d")
    assert list(rows["outcome"]) == [after]
    assert list(rows["submission"]) == [made.token]


def test_a_ledger_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    plan, said = planned(tmp_path / "p", dqn_study(), "sol"), list[str]()
    submitted(plan, "7")
    write_record(plan, cells_of(plan)[0], "7_0-0")
    (plan / FILE).write_bytes(b"no database" * 100)
    assert collect([plan], tmp_path / "d", scheduler(), say=said.append).outcomes == {"completed": 1}
    (line,) = said
    assert line.startswith(f"{plan / FILE}: is damaged") and "`hpcrl submit` rebuilds the ledger" in line


def test_cells_are_read_once_for_all_submissions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also those of an older generation of the plan."""
    opened: list[Path] = []
    open_file = plan_format.open_of_stranger

    def counting(path: Path, *rest: Any, **named: Any) -> Any:
        opened.append(path)
        return open_file(path, *rest, **named)

    monkeypatch.setattr(plan_format, "open_of_stranger", counting)
    times = []
    for number in (1, 20):
        directory = tmp_path / str(number)
        plan = planned(directory, dqn_study(seeds=20), "sol")
        jobs = [job.name for job in read_plan(plan).cell_jobs()]
        for task in range(number):
            submitted(plan, str(100 + task), task=task)
            write_record(plan, cells_of(plan)[task], f"{100 + task}_0-0")
        study = write_yaml(tmp_path / "fewer.yaml", dqn_study(seeds=[3]))
        write_plan(make_plan(Library(), "sol", str(study), UserChoices(account="lab"), read_before(plan)), plan)
        assert jobs != [job.name for job in read_plan(plan).cell_jobs()]
        opened.clear()
        collect([plan], tmp_path / f"d{number}", no_slurm())
        times.append(len(opened))
        assert len(hpcrl.load(tmp_path / f"d{number}")) == number
    assert times[0] == times[1]


def test_without_its_ledger_a_record_names_its_submission_and_the_start_is_its_age(tmp_path: Path) -> None:
    plan = planned(tmp_path / "p", dqn_study(), "sol")
    (cell,) = cells_of(plan)
    write_record(plan, cell, "byhand-1", header={"started": 1.0})
    write_record(plan, cell, "9_0-0", header={"started": 50.0, "submission": "hpcrl-01234567-1-0000bb"})
    write_record(plan, cell, "7_0-1", header={"started": 5.0, "submission": "hpcrl-01234567-1-0000aa"})
    gathered(tmp_path / "d", plan)
    rows = hpcrl.load(tmp_path / "d")
    assert list(rows["attempt"]) == ["7_0-1", "9_0-0", "byhand-1"]
    assert list(rows["submission"].fillna("")) == ["hpcrl-01234567-1-0000aa", "hpcrl-01234567-1-0000bb", ""]
    assert not (tmp_path / "d/records/accounting.parquet").exists()
