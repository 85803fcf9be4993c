"""What is submitted where the ledger, a submission or the cells are not what they were, or the plan is a copy."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from hpcrl.errors import HpcrlError, UsageError
from hpcrl.formats.attempts import Start, end_attempt, take_attempt
from hpcrl.formats.ledger import FILE, Ledger
from hpcrl.formats.plan import MANIFEST
from hpcrl.formats.submission import read_entry
from hpcrl.plan.before import read_before
from hpcrl.plan.directory import write_plan
from hpcrl.plan.make import UserChoices, make_plan
from hpcrl.slurm.client import Completed, Slurm
from hpcrl.spec.library import Library
from hpcrl.submit.selection import Choice
from hpcrl.submit.status import plan_status
from hpcrl.submit.submission import submit
from tests.builders import cells_of, planned, write_yaml
from tests.submit.test_submission import NONE, FakeSlurm, fake, sent, settle_all, study

__all__ = ["fake"]


def lose_the_ledger(plan: Path, fake: FakeSlurm) -> tuple[Path, Path]:
    """Submit two cells in a submission each, the first of them completed, and lose the ledger; return the two files."""
    cells = [cell["id"] for cell in cells_of(plan)]
    sent(plan, fake, Choice(cells=(cells[0],)))
    settle_all(plan, fake, {})
    sent(plan, fake, Choice(cells=(cells[1],)))
    (plan / FILE).unlink()
    first, second = (plan / "submissions" / fake.option(number, "comment") for number in (0, 1))
    return first, second


def test_a_damaged_submission_of_a_lost_ledger_is_left_out_where_nothing_of_it_runs(
    tmp_path: Path, fake: FakeSlurm
) -> None:
    plan = planned(tmp_path / "p", study(seeds=3), "sol")
    first, _ = lose_the_ledger(plan, fake)
    first.write_text("rubbish")
    said: list[str] = []
    done = sent(plan, fake, say=said.append)
    # The cell that it had granted has completed, as the fence says; the other one still waits.
    assert (done.tasks, done.already) == (1, 2)
    assert (
        said[0] == f"{first}: is damaged; Slurm has no live job of it, so it is left out (kept as {first.name}.damaged)"
    )
    assert "rebuilt from 1 submission and Slurm's answers" in said[1]


def test_a_damaged_submission_whose_job_lives_stops_with_advice(tmp_path: Path, fake: FakeSlurm) -> None:
    plan = planned(tmp_path / "p", study(seeds=3), "sol")
    _, second = lose_the_ledger(plan, fake)
    content = second.read_text()
    second.write_text("rubbish")
    words = r"is damaged, .* Its job 101 still waits or runs: wait for its end or cancel it \(scancel 101\)"
    with pytest.raises(HpcrlError, match=words):
        sent(plan, fake)
    assert (len(fake.submitted), second.exists()) == (2, True)
    assert not (plan / FILE).exists()
    with pytest.raises(HpcrlError, match=r"make sure that none of its cells runs any more \(ps, squeue\), remove"):
        submit(plan, "local", Slurm(fake), NONE, lambda *progress: None)
    second.write_text(content)
    assert sent(plan, fake).already == 2


def test_a_damaged_submission_while_slurm_does_not_answer(tmp_path: Path, fake: FakeSlurm) -> None:
    plan = planned(tmp_path / "p", study(seeds=3), "sol")
    first, _ = lose_the_ledger(plan, fake)
    first.write_text("")
    fake.squeue = lambda words: Completed(1, "", "squeue: error: Unable to contact")  # type: ignore[method-assign]
    with pytest.raises(HpcrlError, match=r"Slurm does not say whether its job runs .*: nothing was submitted; run"):
        sent(plan, fake)
    assert len(fake.submitted) == 2


def test_a_copied_or_renamed_submission_counts_once(tmp_path: Path, fake: FakeSlurm) -> None:
    plan = planned(tmp_path / "p", study(seeds=3), "sol")
    first, second = lose_the_ledger(plan, fake)
    first.with_name(first.name[:-6] + "0a0a0a").write_text(first.read_text())
    second.rename(second.with_name(second.name[:-6] + "0b0b0b"))
    done = sent(plan, fake)
    assert (done.tasks, done.already) == (1, 2)
    assert read_entry(plan, second.name, 0) == (1, 1)
    numbers = [each.number for each in Ledger(plan).submissions()]
    assert numbers == [1, 2, 3]


@pytest.mark.parametrize("ledger", ["copied", "lost"])
def test_a_copy_leaves_to_the_original_what_that_has_submitted(tmp_path: Path, fake: FakeSlurm, ledger: str) -> None:
    """The jobs of the original have the same names: they are not the copy's, whatever becomes of them."""
    plan = planned(tmp_path / "p", study(seeds=3), "sol")
    assert sent(plan, fake).tasks == 3
    first, *_ = cells_of(plan)
    start = Start(first["id"], "1", 0, "100_0", "mark")
    take_attempt(plan, start, {})
    end_attempt(plan, start, "completed")
    copy = tmp_path / "copy"
    shutil.copytree(plan, copy)
    if ledger == "lost":
        (copy / FILE).unlink()
    with pytest.raises(HpcrlError, match=r"copy: is a copy of \S+/p, and that plan was submitted: continue there"):
        sent(copy, fake)
    done = sent(copy, fake, Choice(here=True))
    assert (done.tasks, len(fake.submitted)) == (2, 2)
    # The original's cells end; the copy's wait.
    fake.states |= {f"100_{index}": "COMPLETED" for index in range(3)}
    assert sorted(plan_status(copy, Slurm(fake)).counts().items()) == [("COMPLETED", 1), ("PENDING", 2)]
    assert sent(copy, fake).tasks == 0


def test_two_submissions_of_one_number_are_both_taken_up(tmp_path: Path, fake: FakeSlurm) -> None:
    plan = planned(tmp_path / "p", study(seeds=3), "sol")
    first, second = lose_the_ledger(plan, fake)
    second.write_text(second.read_text().replace('"number": 2', '"number": 1'))
    assert sent(plan, fake).already == 2
    assert first.exists()


@pytest.mark.parametrize("damage", ["reordered", "appended", "generation 1"])
def test_cells_that_are_not_the_plan_s_stop_a_submission(tmp_path: Path, fake: FakeSlurm, damage: str) -> None:
    plan = planned(tmp_path / "p", study(seeds=3), "sol")
    if damage == "generation 1":
        other = write_yaml(tmp_path / "other.yaml", study(seeds=4))
        write_plan(make_plan(Library(), "sol", str(other), UserChoices(account="lab"), read_before(plan)), plan)
        assert sent(plan, fake).tasks == 4
    path = plan / "cells.jsonl"
    content = path.read_text()
    path.write_text(
        content + "nonsense\n" if damage == "appended" else "".join(content.splitlines(keepends=True)[::-1])
    )
    before = len(fake.submitted)
    words = r"cells\.jsonl: was changed after the plan was made: restore it from a copy, or plan again into another directory"
    with pytest.raises(UsageError, match=words):
        sent(plan, fake)
    assert len(fake.submitted) == before
    path.write_text(content)
    sent(plan, fake)


def test_a_plan_without_a_digest_is_taken_as_it_is(tmp_path: Path, fake: FakeSlurm) -> None:
    """As plans of older versions are."""
    plan = planned(tmp_path / "p", study(seeds=3), "sol")
    content = json.loads((plan / MANIFEST).read_text())
    del content["digests"]
    (plan / MANIFEST).write_text(json.dumps(content))
    assert sent(plan, fake).tasks == 3
