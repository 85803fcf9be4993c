"""Several processes that collect into one dataset, and processes that are killed while they do."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

import hpcrl
from hpcrl.errors import HpcrlError
from hpcrl.report.query import query
from tests.builders import cells_of, dqn_study, planned, write_record
from tests.collect.gathering import gathered

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
        time.sleep(chance.uniform(0, 0.5) * (time.monotonic() - started))
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
