"""Every fault of benchmarks/faults, once, on a real Slurm: nothing lost, nothing run twice, nothing told wrongly."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.faults.rig import Rig
from benchmarks.faults.scenarios import SCENARIOS, run_scenario

pytestmark = pytest.mark.slurm
# They wait out the minute after which a job is LOST, or a daemon's time-outs; benchmarks/faults runs them.
LONG = {
    "the controller forgets the job and others get its id",
    "accounting is away",
    "a node s daemon is killed and comes back",
}


@pytest.fixture(scope="module")
def rig() -> Iterator[Rig]:
    found = Rig(Path(tempfile.mkdtemp(prefix="hf-", dir="/tmp")), cells=3)
    try:
        yield found
    finally:
        found.close()


@pytest.mark.parametrize("name", [name for name in SCENARIOS if name not in LONG])
def test_nothing_is_lost_doubled_or_told_wrongly(rig: Rig, name: str) -> None:
    count = run_scenario(rig, name)
    assert count.faults() == 0, "\n".join(count.notes)
