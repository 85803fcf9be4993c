"""What `hpcrl cancel` does and says: of jobs that run, that Slurm does not list, that are another's, and while Slurm is silent."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from hpcrl.errors import HpcrlError, UsageError
from hpcrl.formats.finding import find_cell
from hpcrl.formats.plan import read_plan
from hpcrl.plan.before import read_before
from hpcrl.plan.directory import write_plan
from hpcrl.plan.make import UserChoices, make_plan
from hpcrl.slurm.client import Completed, NoAnswer, Slurm
from hpcrl.spec.library import Library
from hpcrl.submit.logs import find_log
from hpcrl.submit.status import Cancelled, cancel
from tests.builders import cells_of, dqn_study, granted, write_record, write_yaml
from tests.conftest import Shown
from tests.submit.test_survey import Scene, scene

__all__ = ["scene"]


def test_cancel_says_when_slurm_could_not_be_asked(scene: Scene) -> None:
    scene.queue, scene.accounting = NoAnswer("x"), NoAnswer("x")
    with pytest.raises(HpcrlError, match=r"squeue: gave no answer .*: nothing was cancelled; run `hpcrl cancel` again"):
        cancel(scene.plan, Slurm(scene.run), [])
    assert scene.ledger.cancelled() == set()


@pytest.mark.parametrize("answer", [Completed(1, "", "scancel: error: Connection refused"), NoAnswer("x")])
def test_a_cancel_that_failed_is_not_remembered(scene: Scene, answer: Completed | Exception) -> None:
    """Neither as done while Slurm is silent, nor in the count of the next one."""
    scene.queue = "7_[0-2]|PENDING|None|NAME\n"
    run, fails = scene.run, [True]

    def scancel(arguments: Sequence[str], cwd: Path | None, timeout: float) -> Completed:
        if "scancel" in arguments and fails:
            if isinstance(answer, Exception):
                raise answer
            return answer
        return run(arguments, cwd, timeout)

    with pytest.raises(
        HpcrlError, match="it is not known what was cancelled: run `hpcrl cancel` again when Slurm answers"
    ):
        cancel(scene.plan, Slurm(scancel), [])
    assert scene.ledger.cancelled() == set()
    fails.clear()
    assert cancel(scene.plan, Slurm(scancel), []) == Cancelled(3)
    assert len(scene.ledger.cancelled()) == 3
    scene.queue, scene.accounting = NoAnswer("x"), NoAnswer("x")
    assert scene.states() == ["UNKNOWN"] * 3
    scene.queue = scene.accounting = ""
    assert scene.states() == ["CANCELLED"] * 3


def test_cancel_reaches_jobs_that_slurm_does_not_list_yet_and_says_what_it_does_not_reach(
    scene: Scene, hpcrl: Callable[..., Shown], monkeypatch: pytest.MonkeyPatch
) -> None:
    scene.ledger.refused(scene.first.token, "not this one")
    scene.submit(granted(scene.plan, "0-1"), "8", age=1.0)
    made = scene.submit(granted(scene.plan, "2"), "9")
    scene.begin(2, key="9_0", token=made.token)
    write_record(scene.plan, cells_of(scene.plan)[2], "9_0-0", outcome=None)
    said: list[Sequence[str]] = []

    def scancel(arguments: Sequence[str], cwd: Path | None, timeout: float) -> Completed:
        said.extend([arguments] if "scancel" in arguments else [])
        return scene.run(arguments, cwd, timeout)

    monkeypatch.setattr("hpcrl.slurm.client.Slurm", lambda: Slurm(scancel))
    assert scene.states() == ["UNCONFIRMED", "UNCONFIRMED", "UNKNOWN"]
    shown = hpcrl("cancel", scene.plan)
    first, second = shown.out.splitlines()
    assert first == "2 cells cancelled."
    assert second.startswith("Not cancelled: 1 task of which nobody knows whether it waits or runs")
    assert shown.code == 1
    assert list(said[0]) == ["scancel", "8"]


def test_cancel_counts_what_was_cancelled(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two of three tasks complete before the signal reaches them."""
    monkeypatch.setattr("hpcrl.submit.status._LOOKS", (0.0, 0.0))
    scene.queue = "7_[0-2]|RUNNING|None|NAME\n"
    run = scene.run

    def scancel(arguments: Sequence[str], cwd: Path | None, timeout: float) -> Completed:
        if "scancel" in arguments:
            for cell in (0, 1):
                scene.begin(cell, key=f"7_{cell}", outcome="completed")
            scene.queue = ""
            scene.accounting = (
                "7_0|COMPLETED|0:0|3|htc|c|NAME\n7_1|COMPLETED|0:0|3|htc|c|NAME\n7_2|CANCELLED|0:0|3|htc|c|NAME\n"
            )
        return run(arguments, cwd, timeout)

    assert cancel(scene.plan, Slurm(scancel), []) == Cancelled(1, completed=2)
    assert cancel(scene.plan, Slurm(scancel), []) == Cancelled(0, 0)


def test_a_cell_is_not_cancelled_with_others_of_its_array_task(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """Slurm ends whole tasks: the cell that runs would end with the one that waits behind it."""
    monkeypatch.setattr("hpcrl.submit.status._LOOKS", (0.0,))
    scene.ledger.refused(scene.first.token, "not this one")
    made = scene.submit(granted(scene.plan, "0-2", cells_per_task=3), "9")
    scene.queue = f"9_0|RUNNING|None|{made.name}\n"
    scene.begin(0, key="9_0", outcome="completed")
    scene.begin(1, key="9_0")
    ended: list[str] = []

    def scancel(arguments: Sequence[str], cwd: Path | None, timeout: float) -> Completed:
        ended.extend(arguments[1:] if arguments[0] == "scancel" else ())
        return scene.run(arguments, cwd, timeout)

    _, runs, waits = scene.cells
    with pytest.raises(UsageError, match=rf"would end, too \({runs}\): nothing was cancelled; name these cells"):
        cancel(scene.plan, Slurm(scancel), [waits])
    assert (ended, scene.ledger.cancelled()) == ([], set())
    assert cancel(scene.plan, Slurm(scancel), [waits, runs]).cells == 2
    assert set(ended) == {"9_0"}


def test_a_cell_of_an_older_generation_is_found_and_cancelled(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hpcrl.submit.status._LOOKS", (0.0,))
    files = make_plan(
        Library(),
        "sol",
        str(scene.plan.parent / "p-study/study.yaml"),
        UserChoices(account="lab"),
        read_before(scene.plan),
    )
    assert files.plan.generation == 1  # the same study: nothing new
    study = write_yaml(scene.plan.parent / "other.yaml", dqn_study(seeds=[2, 3]))
    write_plan(make_plan(Library(), "sol", str(study), UserChoices(account="lab"), read_before(scene.plan)), scene.plan)
    gone = scene.cells[0]
    with pytest.raises(UsageError, match=f"cell {gone} of .* belongs to generation 1 and is no longer in the study"):
        find_cell(scene.plan, read_plan(scene.plan), gone[:8])
    scene.queue = "7_[0-2]|RUNNING|None|NAME\n"
    said: list[str] = []
    cancelled: list[str] = []

    def scancel(arguments: Sequence[str], cwd: Path | None, timeout: float) -> Completed:
        cancelled.extend(arguments[1:] if arguments[0] == "scancel" else ())
        return scene.run(arguments, cwd, timeout)

    assert cancel(scene.plan, Slurm(scancel), [gone[:8]], said.append).cells == 1
    assert cancelled == ["7_0"]
    assert said == [f"cell {gone} belongs to an older generation of the plan and is no longer in the study"]
    log = scene.plan / f"logs/{scene.first.job}-7_0.out"
    log.parent.mkdir(exist_ok=True)
    log.touch()
    assert find_log(scene.plan, gone, Slurm(scene.run)) == log
