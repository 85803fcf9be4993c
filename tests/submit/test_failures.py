"""Why cells failed: which line of a log is a cell's own, and which failures have one cause."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from hpcrl.formats.attempts import Start, begins, end_attempt, take_attempt
from hpcrl.schedulers.states import TaskStatus
from hpcrl.slurm.client import JobState, Slurm
from hpcrl.submit.failures import counted, own_last_line
from hpcrl.submit.status import plan_status
from tests.builders import cells_of, granted, write_record
from tests.collect.gathering import rewritten
from tests.submit.test_survey import Scene

SPOOLED = "/var/spool/slurmd/job00123/slurm_script: line 12: module: command not found"
FIRST, AGAIN, OTHER = (
    begins(Start(cell, "1", restart, "7_0", "m")) for cell, restart in (("aaa", 0), ("aaa", 1), ("bbb", 0))
)
WITHOUT_MPI = (
    "srun: the MPI type in the script does not suit this site or the MPI library of the cell: set `launch.mpi` of the cluster's profile to "
    "one of `srun --mpi=list`, then make the plan again"
)


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path)


@pytest.mark.parametrize(
    ("lines", "told"),
    [
        ([SPOOLED, FIRST, "boom"], "boom"),
        ([SPOOLED, FIRST], None),
        ([SPOOLED], "scripts/x.sbatch: line 12: module: command not found"),
        ([FIRST, "boom", "srun: error: c1: task 0: Exited with exit code 1"], "boom"),
        ([FIRST, "before", SPOOLED, AGAIN], None),
        ([FIRST, "before", AGAIN, "after"], "after"),
        ([FIRST, "mine", OTHER, "its"], "mine"),
        ([OTHER, "its"], None),
        ([FIRST, "10 %\r20 %\rboom\r"], "boom"),
        ([FIRST, "x" * 30_000, "boom"], "boom"),
        (["srun: error: Invalid MPI type 'pmix', --mpi=list for acceptable types"], WITHOUT_MPI),
        (["loading", "srun: error: invalid MPI type 'pmix', --mpi=list for acceptable types"], WITHOUT_MPI),
        ([FIRST, "but OMPI was not built with SLURM's PMI support and therefore cannot", "execute."], WITHOUT_MPI),
        ([FIRST, "boom: Invalid MPI type"], "boom: Invalid MPI type"),
        ([FIRST, "mine", OTHER, "but OMPI was not built with SLURM's PMI support and therefore cannot"], "mine"),
    ],
)
def test_only_what_the_cell_printed_counts_once_it_has_begun(
    tmp_path: Path, lines: list[str], told: str | None
) -> None:
    log = tmp_path / "x.out"
    log.write_text("\n".join([*lines, ""]))
    assert own_last_line(log, "aaa", "scripts/x.sbatch") == told


def test_in_a_log_of_several_cells_an_early_one_is_found(tmp_path: Path) -> None:
    log = tmp_path / "x.out"
    log.write_text("\n".join([FIRST, "boom", OTHER, *["its"] * 20_000]))
    assert own_last_line(log, "aaa", "x", shared=True) == "boom"


def failed(reason: str, number: int) -> TaskStatus:
    return TaskStatus("FAILED", 1, None, number, JobState(str(4000 + number), "FAILED", nodes=f"c{number:03d}"), reason)


def test_ids_nodes_and_addresses_do_not_split_a_cause() -> None:
    reasons = [
        (
            f"cell{n}",
            failed(f"/scratch/job_{4000 + n}/cell{n} on c{n:03d}: no file at 0x7f{n:02x} (process {70000 + n})", n),
        )
        for n in range(5)
    ]
    assert counted(reasons) == {"FAILED: /scratch/job_N/CELL on NODE: no file at 0xN (process N)": 5}
    advice = "the environment was not built: run hpcrl env create --plan /tmp/mine/plan"
    assert counted([(f"cell{n}", failed(advice, n)) for n in range(3)]) == {f"FAILED: {advice}": 3}
    assert counted([("a", failed("x ended with exit code 1", 1)), ("b", failed("x ended with exit code 2", 2))]) == {
        "FAILED: x ended with exit code 1": 1,
        "FAILED: x ended with exit code 2": 1,
    }


def test_the_preamble_of_a_cell_that_never_began_is_one_cause(scene: Scene) -> None:
    scene.accounting = "".join(f"7_{index}|FAILED|1:0|3|htc|c{index}|NAME\n" for index in range(3))
    (scene.plan / "logs").mkdir(exist_ok=True)
    job = scene.first.job
    for index in range(3):
        (scene.plan / f"logs/{job}-7_{index}.out").write_text(SPOOLED.replace("123", str(123 + index)) + "\n")
    causes = plan_status(scene.plan, Slurm(scene.run)).causes()
    assert causes == {f"FAILED: scripts/{job}.sbatch: line 12: module: command not found": 3}


def test_a_record_and_a_log_that_could_not_be_written(scene: Scene) -> None:
    """As on a full disk: all that is known is told."""
    scene.begin(0)
    scene.accounting = "7_0|FAILED|1:0|3|htc|c1|NAME\n7_1|FAILED|0:9|3|htc|c1|NAME\n"
    (scene.plan / "logs").mkdir(exist_ok=True)
    for index in (0, 1):
        (scene.plan / f"logs/{scene.first.job}-7_{index}.out").touch()
    statuses = plan_status(scene.plan, Slurm(scene.run)).statuses
    assert statuses[0].reason == (
        "exit code 1; it began, but its record has no end, and its log is empty: "
        "was it killed, or was the disk or your quota full at that time?"
    )
    assert (statuses[1].reason or "").startswith("ended by signal 9; it never began, and its log is empty")


def test_a_requeued_cell_does_not_show_how_it_ended_before(scene: Scene) -> None:
    scene.begin(0)
    scene.queue = "7_0|RUNNING|None|NAME\n"
    write_record(scene.plan, cells_of(scene.plan)[0], "7_0-0", outcome="preempted", reason="ended by TERM")
    assert plan_status(scene.plan, Slurm(scene.run)).statuses[0].reason is None


def test_a_failed_attempt_does_not_show_the_reason_of_the_one_before(scene: Scene) -> None:
    scene.begin(0)
    write_record(scene.plan, cells_of(scene.plan)[0], "6_0-0", outcome="failed", reason="of old")
    (scene.plan / "logs").mkdir(exist_ok=True)
    (scene.plan / f"logs/{scene.first.job}-7_0.out").write_text("of now\n")
    scene.accounting = "7_0|FAILED|1:0|3|htc|c1|NAME\n"
    assert plan_status(scene.plan, Slurm(scene.run)).statuses[0].reason == "of now"


def test_the_cause_is_that_of_the_rank_that_failed_and_not_the_signal_that_the_others_got(scene: Scene) -> None:
    """An actor was killed. The launcher sent TERM to the learner, which kept a checkpoint."""
    scene.ledger.refused(scene.first.token, "x")
    token = scene.submit(granted(scene.plan, "0-2", executor="local"), "7").token
    start = Start(scene.cells[0], "1", 0, f"{token}_0", "m")
    assert take_attempt(scene.plan, start, {}) is None
    attempt = scene.ledger.submissions()[-1].attempt(0)
    cell = cells_of(scene.plan)[0]
    ends = [("preempted", "ended by TERM; a checkpoint was kept"), ("failed", "killed by SIGKILL"), ("preempted", None)]
    for rank, (outcome, reason) in enumerate(ends):
        write_record(scene.plan, cell, attempt, rank=rank, outcome=outcome, reason=reason)
        end_attempt(scene.plan, start, outcome, rank, len(ends))
    scene.ledger.local_end(token, 0, "FAILED", 137)
    status = plan_status(scene.plan, Slurm(scene.run)).statuses[0]
    assert (status.state, status.reason) == ("FAILED", "rank 1: killed by SIGKILL")


def test_the_first_failure_is_found_by_the_first_node_s_clock(scene: Scene) -> None:
    scene.begin(0, outcome="failed")
    scene.accounting = "7_0|FAILED|1:0|3|htc|c1|NAME\n"
    # Reason, node, start and offset of the clock, which only the first rank of a node knows. All run for 4 s.
    ranks = [("closed", "n1", 3.0, 0.0), ("reset", "n2", 9.5, 7.0), ("it broke", "n2", 9.0, None)]
    for rank, (reason, node, started, offset) in enumerate(ranks):
        head = {"started": started, "clock_offset": offset}
        cell = cells_of(scene.plan)[0]
        write_record(scene.plan, cell, "7_0-0", rank=rank, node=node, outcome="failed", reason=reason, header=head)
    assert plan_status(scene.plan, Slurm(scene.run)).statuses[0].reason == "rank 2: it broke"


def test_a_running_cell_shows_the_progress_of_its_first_rank(scene: Scene) -> None:
    scene.begin(0)
    scene.queue = "7_0|RUNNING|None|NAME\n"
    for rank, step in enumerate((30, 7)):
        with rewritten(write_record(scene.plan, cells_of(scene.plan)[0], "7_0-0", rank=rank, outcome=None)) as writer:
            writer.write("progress", {"table": np.array([[step, 100.0, 1.0]])})
    assert plan_status(scene.plan, Slurm(scene.run)).pick([0])[0].progress == (30, 100)


def test_long_lists_end_in_how_to_see_all(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    from hpcrl.cli import status

    monkeypatch.setattr(status, "SHOWN", 1)
    monkeypatch.setattr(status, "CAUSES", 1)
    scene.accounting = "".join(f"7_{index}|FAILED|1:0|3|htc|c{index}|NAME\n" for index in range(3))
    (scene.plan / "logs").mkdir(exist_ok=True)
    for index, word in enumerate("xyz"):
        (scene.plan / f"logs/{scene.first.job}-7_{index}.out").write_text(f"{word}\n")
    found = plan_status(scene.plan, Slurm(scene.run))
    status._echo_rest(found, scene.plan)
    status._echo_end(found, scene.plan)
    told = capfd.readouterr().err
    assert f"and 2 more cells (2 of them did not complete): `hpcrl status {scene.plan} --json` lists all\n" in told
    assert f"  1 x FAILED: x\n  and 2 more causes: `hpcrl status {scene.plan} --json` lists all\n" in told


def test_a_check_s_failure_is_not_explained_by_the_command_s_output(tmp_path: Path) -> None:
    log = tmp_path / "x.out"
    log.write_text("hpcrl: cell aaa begins (attempt 7_0)\nall is well\nhpcrl: the check begins\n")
    assert own_last_line(log, "aaa", "x") is None
    log.write_text(f"{log.read_text()}energy differs by 3 percent\n")
    assert own_last_line(log, "aaa", "x") == "energy differs by 3 percent"
