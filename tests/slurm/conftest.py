"""Private Slurms for the tests: one that imitates Sol, one that imitates Cirrus, side by side."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import hpcrl
from hpcrl.collect.merge import collect
from hpcrl.private_slurm.virtual import VirtualSlurm
from hpcrl.slurm.client import Slurm, run_command
from hpcrl.spec.library import Library
from hpcrl.submit.selection import Budget
from hpcrl.submit.status import PlanStatus, plan_status
from hpcrl.submit.submission import submit
from tests.builders import ENVIRONMENTS, built_environment, planned


@dataclass(frozen=True)
class Cluster:
    """A running private Slurm, and plans that are made for it."""

    name: str
    virtual: VirtualSlurm
    slurm: Slurm

    def plan(self, directory: Path, study: dict[str, Any] | str, profile: str | None = None) -> Path:
        if isinstance(study, dict):  # a plan of its own for each test: Slurm remembers the jobs of others
            study = {**study, "title": f"{study['title']}, {directory}"}
        return planned(directory, study, profile or self.name, environments_root=str(ENVIRONMENTS))

    def submit(self, plan: Path) -> int:
        return submit(plan, "slurm", self.slurm, Budget(), lambda *progress: None).tasks

    def wait(self, plan: Path, seconds: float = 600) -> PlanStatus:
        """Wait until nothing of a plan waits or runs any more."""
        deadline = time.monotonic() + seconds
        while (status := plan_status(plan, self.slurm)).live():
            assert time.monotonic() < deadline, f"still {status.counts()}"
            time.sleep(0.5)
        return status

    def until(self, condition: Callable[[], bool], seconds: float = 300) -> None:
        deadline = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < deadline, "it never came to pass"
            time.sleep(0.3)

    def collected(self, plan: Path) -> pd.DataFrame:
        """Collect a plan into a dataset beside it and return its attempts."""
        collect([plan], plan.parent / "dataset", self.slurm)
        return hpcrl.load(plan.parent / "dataset")


def cluster_of(name: str, virtual: VirtualSlurm) -> Cluster:
    """Return a running private Slurm as the cluster that it imitates."""

    def run(arguments: Any, cwd: Path | None, timeout: float) -> Any:
        words = ["env", *(f"{key}={value}" for key, value in virtual.environment().items()), *arguments]
        return run_command(words, cwd, timeout)

    return Cluster(name, virtual, Slurm(run))


def _started(name: str, control_groups: bool | None = None) -> Iterator[Cluster]:
    directory = Path(tempfile.mkdtemp(prefix="hv-", dir="/tmp"))
    virtual = VirtualSlurm(directory)
    virtual.up(Library().cluster(name), control_groups=control_groups)
    try:
        yield cluster_of(name, virtual)
    finally:
        virtual.down()
        assert virtual.processes() == []
        shutil.rmtree(directory)


@pytest.fixture(scope="session")
def sol_cluster() -> Iterator[Cluster]:
    yield from _started("sol")


@pytest.fixture(scope="session")
def cirrus_cluster() -> Iterator[Cluster]:
    yield from _started("cirrus")


@pytest.fixture(scope="session")
def legacy_cluster() -> Iterator[Cluster]:
    yield from _started("cirrus-legacy")


@pytest.fixture
def sol(sol_cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> Cluster:
    """The imitated Sol, as the Slurm at hand."""
    monkeypatch.setenv("SLURM_CONF", str(sol_cluster.virtual.conf))
    return sol_cluster


@pytest.fixture
def ungrouped(monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    """The imitated Sol without control groups: Slurm then signals every process of a step."""
    for cluster in _started("sol", control_groups=False):
        monkeypatch.setenv("SLURM_CONF", str(cluster.virtual.conf))
        yield cluster


@pytest.fixture(scope="session")
def numpy_environment() -> None:
    """The NumPy environment, built as for any user."""
    built_environment("numpy")
