from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from hpcrl.errors import HpcrlError
from hpcrl.slurm.client import Completed, Slurm, run_command


def answering(**answers: str) -> Slurm:
    def run(arguments: Sequence[str], cwd: Path | None, timeout: float) -> Completed:
        text = answers.get(arguments[0])
        return Completed(0, text, "") if text is not None else Completed(1, "", "down")

    return Slurm(run)


def test_the_live_queue_wins_over_late_accounting() -> None:
    slurm = answering(
        sacct="7_0|COMPLETED|0:0|12|htc\n7_1|PENDING|0:0|0|htc\n7_[2-3]|PENDING|0:0|0|htc\n8|RUNNING|0:0|1|\n9|CANCELLED by 0|0:15|3|htc\n",
        squeue="7_1|RUNNING|None\n7_2|PENDING|Resources\n",
    )
    states = slurm.states(["7", "8", "9"])
    assert {key: each.state for key, each in states.items()} == {
        "7_0": "COMPLETED", "7_1": "RUNNING", "7_2": "PENDING", "7_3": "PENDING", "9": "CANCELLED",
    }  # fmt: skip
    assert states["7_2"].reason == "Resources"
    assert states["7_0"].elapsed == 12


def test_without_accounting_the_queue_still_tells() -> None:
    states = answering(squeue="7|FAILED|NonZeroExitCode\n").states(["7"])
    assert states["7"].state == "FAILED"


def test_when_neither_answers() -> None:
    with pytest.raises(HpcrlError, match="neither squeue nor sacct answers: down"):
        answering().states(["7"])


def test_commands_that_are_not_there_or_hang() -> None:
    with pytest.raises(HpcrlError, match="no-such-program: no such command"):
        run_command(["no-such-program"])
    with pytest.raises(HpcrlError, match="sleep: gave no answer within 0 s"):
        run_command(["sleep", "5"], timeout=0.1)
