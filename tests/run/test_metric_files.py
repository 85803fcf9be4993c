"""Values that unmodified programs write by themselves, each written by the real library."""

from __future__ import annotations

import os
import random
import struct
import subprocess
import sys
import time
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

import hpcrl as package
from hpcrl.collect.merge import collect
from hpcrl.errors import UsageError
from hpcrl.run.metric_files import read_metric_files
from hpcrl.slurm.client import Slurm
from tests.builders import cells_of, command_study, planned, run_task, write_yaml
from tests.run.test_cell import only_record

JOB = "mine-numpy-cpu-1"
KILLS = 3
TENSORBOARD = """\
import sys, time
from tensorboard.summary import DirectoryOutput, Writer
writer = Writer(DirectoryOutput(f"runs/CartPole-v1__dqn__{sys.argv[1]}"))
for step in range(0, 50, 10):
    writer.add_scalar("charts/episodic_return", step + float(sys.argv[1]), step)
    writer.add_scalar("losses/td_loss", 1 / (step + 1), step)
writer.close()
"""
CSV = """\
import csv
with open("progress.csv", "w", newline="") as file:
    writer = csv.writer(file)
    writer.writerow(["name", "global_step", "rollout/ep_rew_mean", "loss"])
    for step in range(3):
        writer.writerow(["a", step * 100, step + 0.5, "" if step == 0 else "nan" if step == 1 else 0.25])
"""
WANDB = """\
import wandb
run = wandb.init(project="mine", mode="offline", dir=".", settings=wandb.Settings(silent=True, console="off"))
for step in range(2000):
    run.log({"charts/episodic_return": step * 1.5, "nested": {"loss": 0.5}, "word": "x" * 50}, step=step * 10)
run.finish()
"""


def run_script(tmp_path: Path, text: str, metrics: dict[str, str], *words: str, **changes: Any) -> Path:
    project = tmp_path / "project"
    project.mkdir(exist_ok=True)
    (project / "script.py").write_text(text)
    study = command_study([sys.executable, "{workdir}/script.py", *words], **changes)
    study["workload"] |= {"start_in": "cell", "metrics": metrics}
    return planned(tmp_path / "plan", str(write_yaml(project / "study.yaml", study)), path=with_libraries(tmp_path))


def with_libraries(tmp_path: Path) -> Path:
    """An environment for plans that pins what the readers need; the tests run in their own."""
    pins = ["numpy==2.4.6", "psutil==7.2.2", "tensorboard==2.21.0", "wandb==0.25.1"]
    content = {"name": "numpy", "title": "N", "python": "3.11", "flavours": {"cpu": {"packages": pins}}}
    write_yaml(tmp_path / "library/envs/numpy.yaml", content)
    return tmp_path / "library"


def test_tensorboard_gives_curves_and_scores(tmp_path: Path) -> None:
    plan = run_script(tmp_path, TENSORBOARD, {"tensorboard": "runs"}, "{seed}", seeds=2, score="charts/episodic_return")
    for index in (0, 1):
        done = run_task(plan, JOB, index)
        assert done.returncode == 0, done.stderr
    collect([plan], tmp_path / "d", Slurm())
    rows = package.load(tmp_path / "d")
    assert {row["seed"]: row["final_score"] for _, row in rows.iterrows()} == {1: 41.0, 2: 42.0}
    assert rows["notes"].isna().all()
    points = package.load(tmp_path / "d", "episodes")
    one = points[(points["name"] == "charts/episodic_return") & (points["cell"] == cells_of(plan)[0]["id"])]
    assert list(one["step"]) == [0, 10, 20, 30, 40]


def test_a_csv_file(tmp_path: Path) -> None:
    plan = run_script(tmp_path, CSV, {"csv": "progress.csv"})
    assert run_task(plan, JOB).returncode == 0
    assert [(each["step"], each["values"]) for each in only_record(plan).values] == [
        (0, {"rollout/ep_rew_mean": 0.5}),
        (100, {"rollout/ep_rew_mean": 1.5}),
        (200, {"rollout/ep_rew_mean": 2.5, "loss": 0.25}),
    ]


def test_an_offline_run_of_wandb(tmp_path: Path) -> None:
    plan = run_script(tmp_path, WANDB, {"wandb": "wandb"})
    done = run_task(plan, JOB)
    assert done.returncode == 0, done.stderr
    values = only_record(plan).values
    assert len(values) == 2000  # more than one block of its file
    assert values[7]["step"] == 70
    assert values[7]["values"] == {"charts/episodic_return": 10.5, "nested/loss": 0.5}


@pytest.mark.parametrize("metrics", [{"tensorboard": "runs"}, {"csv": "progress.csv"}, {"wandb": "wandb"}])
def test_files_that_were_not_written_or_are_rubbish(tmp_path: Path, metrics: dict[str, str]) -> None:
    notes: list[str] = []
    assert list(read_metric_files(metrics, {}, tmp_path, 0, notes.append)) == []
    assert notes[0].endswith("the command wrote no such file")
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs/events.out.tfevents.1").write_bytes(b"rubbish" * 100)
    (tmp_path / "wandb").mkdir()
    (tmp_path / "wandb/x.wandb").write_bytes(b"rubbish" * 100)
    (tmp_path / "progress.csv").write_bytes(b"\xff\xfe,\n" * 10)
    assert list(read_metric_files(metrics, {}, tmp_path, 0, notes.append)) == []


def test_files_of_an_earlier_start_are_not_read_again(tmp_path: Path) -> None:
    (tmp_path / "old.csv").write_text("step,x\n1,2\n")
    since = (tmp_path / "old.csv").stat().st_mtime + 10
    notes: list[str] = []
    assert list(read_metric_files({"csv": "old.csv"}, {}, tmp_path, since, notes.append)) == []
    assert len(notes) == 1


def test_steps_that_are_no_numbers_of_steps(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("step,x\n1e300,1\ninf,2\n,3\n-5,4\n2.5,5\n9223372036854775808,6\n")
    found = list(read_metric_files({"csv": "a.csv"}, {}, tmp_path, 0, pytest.fail))
    assert [(each["step"], each["x"]) for each in found] == [
        (None, 1),
        (None, 2),
        (None, 3),
        (-5, 4),
        (2, 5),
        (None, 6),
    ]


def test_odd_places(tmp_path: Path) -> None:
    notes: list[str] = []
    os.mkfifo(tmp_path / "fifo.csv")
    (tmp_path / "loop.csv").symlink_to("loop.csv")
    (tmp_path / "runs").mkdir()
    os.mkfifo(tmp_path / "runs/events.out.tfevents.1")
    (tmp_path / "runs/events.out.tfevents.2").symlink_to("/dev/zero")
    long = "x" * 300
    for metrics in ({"csv": "fifo.csv"}, {"csv": "loop.csv"}, {"tensorboard": "runs"}, {"csv": long}):
        assert list(read_metric_files(metrics, {}, tmp_path, 0, notes.append)) == []
    assert [note.rpartition(": ")[2] for note in notes] == ["the command wrote no such file"] * 3 + [
        "File name too long"
    ]


def test_a_column_that_does_not_exist(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("frame,x\n1,2\n")
    notes: list[str] = []
    assert list(read_metric_files({"csv": "a.csv", "step": "global"}, {}, tmp_path, 0, notes.append)) == []
    assert notes[0].endswith("expected a column 'global', got frame, x")
    found = list(read_metric_files({"csv": "a.csv", "step": "frame"}, {}, tmp_path, 0, notes.append))
    assert found == [{"step": 1, "time": None, "x": 2.0}]


def test_an_environment_without_the_library_is_refused(tmp_path: Path) -> None:
    study = command_study(["true"])
    study["workload"] |= {"start_in": "cell", "metrics": {"tensorboard": "runs"}}
    with pytest.raises(UsageError, match="environment numpy lacks tensorboard, which reads the files: add its pin"):
        planned(tmp_path / "plan", study)


@pytest.mark.parametrize(
    ("begin", "fault"),
    [
        (b"", "line 1 has more than 1,000,000 characters"),
        (b"step,x\n1,2\n", "line 3 has more than 1,000,000 characters"),
    ],
)
def test_a_csv_file_of_one_line(tmp_path: Path, begin: bytes, fault: str) -> None:
    with (tmp_path / "a.csv").open("wb") as file:
        file.write(begin)
        file.truncate(2**30)  # a file with a hole needs no space
    notes: list[str] = []
    tracemalloc.start()
    found = list(read_metric_files({"csv": "a.csv"}, {}, tmp_path, 0, notes.append))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert [each["x"] for each in found] == ([2] if begin else [])
    assert notes == [f"metrics.csv: {tmp_path}/a.csv: cannot be read: {fault}"]
    assert peak < 20e6


def test_a_record_of_wandb_that_never_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hpcrl.run.metric_files.LARGEST_RECORD", 2**20)
    middle = struct.pack("<IHB", 0, 32_761, 3) + bytes(32_761)
    notes: list[str] = []
    with (tmp_path / "x.wandb").open("wb") as file:
        file.write(b":W&B\0\0\0" + struct.pack("<IHB", 0, 32_754, 3) + bytes(32_754) + middle * 100)
    assert list(read_metric_files({"wandb": "."}, {}, tmp_path, 0, notes.append)) == []
    assert [note.rpartition(": ")[2] for note in notes] == ["it has a record of more than 1 MiB"]


def test_a_cell_that_is_killed_while_its_files_are_read(tmp_path: Path) -> None:
    text = "open('a.csv', 'w').write('step,x\\n' + ''.join(f'{step},{step}\\n' for step in range(200_000)))"
    plan = run_script(tmp_path, text, {"csv": "a.csv"})
    chance = random.Random(0)
    killed = KILLS
    for _ in range(KILLS):
        command = [sys.executable, "-m", "hpcrl.run", str(plan), "--job", JOB, "--index", "0", "--interval", "0.1"]
        variables = {**os.environ, "PYTHONPATH": str(plan / "worker.zip")}
        process = subprocess.Popen(command, env=variables, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        before = set((plan / "records").glob("*"))
        while not (new := set((plan / "records").glob("*")) - before) or new.pop().stat().st_size < 50_000:
            time.sleep(0.005)  # until the first values are in the record
            assert process.poll() is None
        time.sleep(chance.uniform(0, 0.5))
        process.kill()
        killed -= process.wait() == 0
    assert killed
    assert run_task(plan, JOB).returncode == 0
    done = collect([plan], tmp_path / "d", Slurm())
    assert (done.merged, done.quarantined) == (KILLS + 1, [])
    points = package.load(tmp_path / "d", "episodes").dropna(subset="value").groupby("attempt")
    for _, each in points:
        assert list(each["value"]) == list(each["step"]) == list(range(len(each)))  # the first ones, none twice
    assert sorted(points.size())[-1] == 200_000
