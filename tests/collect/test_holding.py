"""Several processes that collect into one dataset, and processes that are killed while they do."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from contextlib import ExitStack, suppress
from pathlib import Path
from types import ModuleType

import pytest

import hpcrl
from hpcrl.collect import merge, parts
from hpcrl.collect.holding import held_dataset
from hpcrl.collect.merge import collect
from hpcrl.collect.parts import part_file
from hpcrl.errors import HpcrlError
from hpcrl.formats import lease
from hpcrl.report.query import query
from tests.builders import cells_of, dqn_study, planned, write_record
from tests.collect.gathering import gathered, no_slurm

TABLES = ("cells", "episodes", "samples", "phases")


def plan_with_records(directory: Path, seeds: int, learning_rate: float = 0.001) -> Path:
    study = dqn_study(seeds=seeds)
    study["workload"]["hyperparameters"] |= {"learning_rate": learning_rate}
    plan = planned(directory, study)
    for cell in cells_of(plan):
        write_record(plan, cell)
    return plan


def collecting(plan: Path, dataset: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "hpcrl", "collect", str(plan), "-o", str(dataset)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def contents(dataset: Path) -> dict[str, list[str]]:
    return {table: sorted(map(str, hpcrl.load(dataset, table).itertuples(index=False, name=None))) for table in TABLES}


def test_two_at_once_lose_nothing(tmp_path: Path) -> None:
    plans = [plan_with_records(tmp_path / name, 3, rate) for name, rate in (("a", 0.001), ("b", 0.002), ("c", 0.003))]
    for dataset in (tmp_path / "d", tmp_path / "e"):
        both = [collecting(plan, dataset) for plan in plans]
        for process in both:
            assert process.wait(60) == 0, process.communicate()[1]
        rows = hpcrl.load(dataset)
        assert len(rows) == len(set(zip(rows["plan"], rows["cell"], strict=True))) == 9
        assert hpcrl.load(dataset, "samples").groupby("plan").size().nunique() == 1


def test_a_killed_collect_can_be_repeated(tmp_path: Path) -> None:
    plan = plan_with_records(tmp_path / "p", 4)
    gathered(tmp_path / "whole", plan)
    chance = random.Random(0)
    killed = 0
    for number in range(8):
        dataset = tmp_path / str(number)
        started = time.monotonic()
        process = collecting(plan, dataset)
        while process.poll() is None and not dataset.exists():
            time.sleep(0.005)
        # The first at once, the later ones up to its end: how long it takes differs from machine to machine.
        time.sleep(chance.uniform(0, 0.5) * (number / 7) ** 2 * (time.monotonic() - started))
        process.send_signal(signal.SIGKILL)
        killed += process.wait() == -signal.SIGKILL
        process.communicate()
        gathered(dataset, plan)
        assert contents(dataset) == contents(tmp_path / "whole")
    assert killed


def test_parts_that_the_index_does_not_count_are_removed(tmp_path: Path) -> None:
    plan = plan_with_records(tmp_path / "p", 2)
    other = plan_with_records(tmp_path / "q", 2, 0.002)
    gathered(tmp_path / "d", plan)
    for table in (*TABLES[1:], "records"):
        shutil.copy(tmp_path / f"d/{table}/part-00000.parquet", tmp_path / f"d/{table}/part-00007.parquet")
    gathered(tmp_path / "d", other)
    gathered(tmp_path / "new", plan)
    gathered(tmp_path / "new", other)
    assert contents(tmp_path / "d") == contents(tmp_path / "new")


def test_parts_that_the_index_does_not_count_are_not_read(tmp_path: Path) -> None:
    gathered(tmp_path / "d", plan_with_records(tmp_path / "p", 2))
    before = contents(tmp_path / "d")
    for table in TABLES[1:]:
        shutil.copy(tmp_path / f"d/{table}/part-00000.parquet", tmp_path / f"d/{table}/part-00001.parquet")
    assert contents(tmp_path / "d") == before
    _, ((number,),) = query(tmp_path / "d", "SELECT count(*) FROM samples")
    assert number == len(before["samples"])


@pytest.mark.parametrize("processes", [1, 2])
def test_one_that_was_stopped_and_taken_over_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, processes: int
) -> None:
    plan, other = plan_with_records(tmp_path / "p", 3), plan_with_records(tmp_path / "q", 4, 0.002)
    gathered(tmp_path / "other", other)
    gathered(tmp_path / "both", plan, other)
    monkeypatch.setattr(merge, "BATCH_RECORDS", 1)
    monkeypatch.setattr(lease, "DEAD_SECONDS", 0.0)

    def stopped(done: int, total: int) -> None:
        if done == 1:
            gathered(tmp_path / "d", other)

    with pytest.raises(HpcrlError, match="d: another hpcrl took it over while this one did not answer"):
        collect([plan], tmp_path / "d", no_slurm(), stopped, processes)
    assert contents(tmp_path / "d") == contents(tmp_path / "other")
    gathered(tmp_path / "d", plan)
    assert contents(tmp_path / "d") == contents(tmp_path / "both")


@pytest.mark.parametrize("module", [parts, merge])
def test_one_that_is_stopped_where_it_renames_a_file_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: ModuleType
) -> None:
    """It has just looked whether the lease is its own, for its first part or, when all parts are written, for its lists."""
    plan, other = plan_with_records(tmp_path / "p", 3), plan_with_records(tmp_path / "q", 4, 0.002)
    gathered(tmp_path / "both", plan, other)
    monkeypatch.setattr(lease, "DEAD_SECONDS", 0.0)
    indexes: list[str] = []

    def stopped(path: Path) -> None:
        lease.check_lease(path)
        monkeypatch.setattr(module, "check_lease", lease.check_lease)
        gathered(tmp_path / "d", other)
        indexes.append((tmp_path / "d/dataset.json").read_text())

    monkeypatch.setattr(module, "check_lease", stopped)
    with pytest.raises(HpcrlError, match=r"another hpcrl took it over|No such file or directory"):
        gathered(tmp_path / "d", plan)
    assert indexes == [(tmp_path / "d/dataset.json").read_text()]
    assert not [*(tmp_path / "d").rglob(".*.parquet"), *(tmp_path / "d").glob(".*.json.*")]
    gathered(tmp_path / "d", plan)
    assert contents(tmp_path / "d") == contents(tmp_path / "both")


def test_one_that_was_taken_over_removes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lease, "DEAD_SECONDS", 0.0)
    with ExitStack() as follower:
        with pytest.raises(KeyboardInterrupt), held_dataset(tmp_path / "d", lambda line: None):
            follower.enter_context(held_dataset(tmp_path / "d", lambda line: None))
            part = part_file(tmp_path / "d", "samples", 0)
            part.touch()
            raise KeyboardInterrupt
        assert part.exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount a small file system")
def test_a_full_disk_keeps_the_dataset_as_it_was(tmp_path: Path) -> None:
    small, large = plan_with_records(tmp_path / "p", 2), plan_with_records(tmp_path / "q", 9, 0.002)
    disk = tmp_path / "disk"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=400k", "tmpfs", disk], check=False).returncode:
        pytest.skip("no file system can be mounted here")
    try:
        gathered(disk / "d", small)
        before, files = contents(disk / "d"), sorted((disk / "d").rglob("*.*"))
        for free in range(0, 28_000, 4_000):
            with (disk / "other").open("wb", buffering=0) as other, suppress(OSError):
                while other.write(bytes(4096)):
                    pass
            os.truncate(disk / "other", max(0, (disk / "other").stat().st_size - free))
            with pytest.raises(HpcrlError, match=r"No space left on device[:;]|: free some space"):
                gathered(disk / "d", large)
            (disk / "other").unlink()
            assert sorted((disk / "d").rglob("*.*")) == files
            assert contents(disk / "d") == before
        assert gathered(disk / "d", large).merged == 9
    finally:
        subprocess.run(["umount", disk], check=True)


def test_a_dataset_of_another_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = plan_with_records(tmp_path / "p", 1)
    gathered(tmp_path / "d", plan)
    monkeypatch.setattr("os.access", lambda *_: False)  # root may write everywhere
    with pytest.raises(HpcrlError, match="cannot be written by you: collect into a dataset of your own with -o"):
        gathered(tmp_path / "d", plan)
