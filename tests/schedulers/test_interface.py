"""Each scheduler of the catalogue has a package with everything that submit and collect need of it."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from hpcrl.catalogue.registry import schedulers
from hpcrl.errors import UsageError
from hpcrl.formats.ledger import Ledger
from hpcrl.formats.submission import from_facts
from hpcrl.schedulers import local, slurm
from hpcrl.schedulers.interface import AtWork, at_work, look
from hpcrl.slurm.client import Slurm
from tests.builders import command_study, granted, planned
from tests.submit.test_submission import FakeSlurm, fake

__all__ = ["fake"]
PACKAGES: Sequence[AtWork] = (local, slurm)  # their types are checked here


@pytest.mark.parametrize("name", schedulers())
def test_a_package_has_what_the_interface_says(name: str) -> None:
    for wanted, function in inspect.getmembers(AtWork, inspect.isfunction):
        if not wanted.startswith("_"):
            _, *expected = inspect.signature(function).parameters
            assert list(inspect.signature(getattr(at_work(name), wanted)).parameters) == expected


def test_the_types_of_every_package_are_checked() -> None:
    assert [at_work(name) for name in sorted(schedulers())] == list(PACKAGES)


def test_names_of_attempts_and_logs(tmp_path: Path) -> None:
    plan = planned(tmp_path / "p", command_study(["true"]), "sol")
    there = replace(granted(plan, "0-2"), token="hpcrl-0123abcd-1-aaaaaa", job="j", job_ids=("7", "8"))
    here = replace(there, executor="local")
    assert (there.attempt(2), there.attempt(2, "9"), here.attempt(2)) == ("7_2", "9_2", "local-0123abcd-1-aaaaaa_2")
    assert (there.log(2), here.log(2)) == ("logs/j-7_2.out", "logs/j-local-0123abcd-1-aaaaaa_2.out")
    assert replace(there, job_ids=()).attempt(0) == "?_0"
    # A stage is no array: Slurm names it by its id alone.
    stages = replace(there, array=False), replace(here, array=False)
    assert [each.attempt(0) for each in stages] == ["7", "local-0123abcd-1-aaaaaa_0"]


def test_one_look_asks_the_schedulers_of_all_submissions(tmp_path: Path, fake: FakeSlurm) -> None:
    plan = planned(tmp_path / "p", command_study(["true"], seeds=3), "sol")
    ledger = Ledger(plan, create=True)
    there, here = (ledger.intend(granted(plan, "0-2", executor=name)) for name in ("slurm", "local"))
    ledger.local_start(here.token, 1)
    ledger.local_end(here.token, 1, "FAILED", 3)
    ledger.refused(there.token, "no")
    assert ledger.taken() == [next(each for each in ledger.submissions() if each.executor == "local")]
    view = look(Slurm(fake), ledger, ledger.submissions())
    tasks = view.jobs[here.name][""]
    assert [(each.state, each.exit_code) for each in tasks.values()] == [
        ("PENDING", None),
        ("FAILED", "3:0"),
        ("PENDING", None),
    ]
    assert view.notes() == []
    assert look(Slurm(fake), None, []).jobs == {}
    ledger.close()


def test_a_submission_of_an_unknown_scheduler(tmp_path: Path) -> None:
    plan = planned(tmp_path / "p", command_study(["true"]), "sol")
    with pytest.raises(UsageError, match="does not know the scheduler 'pbs'"):
        from_facts(granted(plan, "0", executor="pbs").facts(), "here")
