from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from hpcrl.formats.record import SAMPLE_COLUMNS, read_frames
from hpcrl.run.recorder import Recorder
from hpcrl.telemetry import phases
from hpcrl.telemetry.phases import PhaseClock


@pytest.fixture
def restless() -> Iterator[None]:
    """Threads that take turns every few instructions."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("restless")
def test_nothing_is_lost_or_doubled_between_threads(tmp_path: Path) -> None:
    """The training loop adds while other threads flush, as the one that listens to the sampler does."""
    recorder = Recorder(tmp_path / "a.rec", PhaseClock())
    recorder.header({})
    over = threading.Event()

    def flush() -> None:
        while not over.is_set():
            recorder.flush()

    threads = [threading.Thread(target=flush) for _ in range(3)]
    for thread in threads:
        thread.start()
    for step in range(5_000):
        recorder.episode(step, 1.0, 1)
        recorder.value({"time": None, "step": step, "loss": 1.0})
    over.set()
    for thread in threads:
        thread.join()
    recorder.footer("completed", None, {})
    frames = list(read_frames(tmp_path / "a.rec"))
    episodes = [step for each in frames if each.kind == "episodes" for step in each.payload["table"][:, 0]]
    values = [entry["step"] for each in frames if each.kind == "values" for entry in each.payload["entries"]]
    assert episodes == values == list(range(5_000))


def test_what_a_full_disk_took_later_is_not_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows and values wait for the disk; an event does not, and is counted."""

    def full(handle: int, data: bytes) -> int:
        raise OSError(28, "No space left on device")

    recorder = Recorder(tmp_path / "a.rec", PhaseClock())
    recorder.header({})
    monkeypatch.setattr(os, "write", full)
    recorder.episode(1, 1.0, 1)
    recorder.value({"time": None, "step": 2, "loss": 1.0})
    for _ in range(3):
        recorder.flush()
    recorder.event("a sensor failed")
    monkeypatch.undo()
    recorder.footer("completed", None, {})
    frames = {frame.kind: frame.payload for frame in read_frames(tmp_path / "a.rec")}
    assert frames["episodes"]["table"][0, 0] == 1
    assert frames["values"]["entries"][0]["step"] == 2
    assert "event" not in frames
    assert frames["footer"]["lost_frames"] == 1


def test_a_killed_rank_leaves_the_phases_of_its_last_flush(tmp_path: Path) -> None:
    clock = PhaseClock()
    recorder = Recorder(tmp_path / "a.rec", clock)
    recorder.header({})
    clock.switch("act")
    clock.switch("update")
    recorder.flush()
    (phases,) = (frame.payload for frame in read_frames(tmp_path / "a.rec") if frame.kind == "phases")
    assert set(phases["seconds"]) == {"setup", "act", "update"}
    assert phases["counts"] == {"setup": 1, "act": 1, "update": 1}
    assert clock.phase == "update"


class Ticks:
    """A clock that a test moves."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        monkeypatch.setattr(phases, "perf_counter", lambda: self.now)
        self.clock = PhaseClock()

    def spend(self, phase: str, seconds: float) -> None:
        self.clock.switch(phase)
        self.now += seconds


def test_training_time_begins_with_the_first_step_and_the_goal_is_timed_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ticks = Ticks(monkeypatch)
    recorder = Recorder(tmp_path / "a.rec", ticks.clock)
    recorder.header({})
    ticks.spend("setup", 5.0)
    ticks.spend("compile", 3.0)
    assert recorder.training_time() == 0
    for value, seconds in ((9.0, 2.0), (10.0, 4.0), (11.0, 8.0), (12.0, 16.0)):
        ticks.spend("act", seconds)
        ticks.spend("evaluate", 1.0)
        recorder.evaluation(1, value)
        ticks.spend("evaluate", 3.0)
        if value in (10.0, 11.0):
            recorder.confirmation(1, value, value == 11.0)
            assert (recorder.goal_time is None) == (value == 10.0)
    assert recorder.goal_time == 2 + 4 + 8
    assert recorder.training_time() == 30
    recorder.footer("completed", None, {})
    frames = {frame.kind: frame.payload for frame in read_frames(tmp_path / "a.rec")}
    assert frames["phases"]["seconds"]["setup"] == 5
    assert recorder.goal_wall_time == frames["evaluations"]["table"][2][1]
    began, spent = frames["evaluations"]["table"][:, 3:].T
    assert (frames["evaluations"]["table"][:, 1] - began).tolist() == pytest.approx([1, 1, 1, 1])
    assert spent.tolist() == [0, 4, 8, 12]  # with the confirmations


def test_a_requeued_cell_counts_what_it_had_spent_at_its_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ticks = Ticks(monkeypatch)
    first = Recorder(tmp_path / "a.rec", ticks.clock)
    for phase, seconds in (("setup", 5.0), ("act", 2.0), ("evaluate", 1.0)):
        ticks.spend(phase, seconds)
    spent = first.spent()
    assert (spent["training_time"], spent["evaluation_time"], spent["goal_time"]) == (2, 1, None)
    ticks = Ticks(monkeypatch)
    second = Recorder(tmp_path / "b.rec", ticks.clock)
    assert second.resumed_step is None
    second.resumed(700, {**spent, "wall_time": 1000.0})
    for phase, seconds in (("setup", 7.0), ("act", 4.0), ("evaluate", 1.0)):
        ticks.spend(phase, seconds)
    second.evaluation(900, 10.0)
    second.confirmation(900, 10.0, reached=True)
    assert (second.resumed_step, second.training_time(), second.evaluation_time()) == (700, 6, 2)
    assert second.goal_time == 6
    assert second.goal_wall_time is not None
    assert 1000 < second.goal_wall_time < 1060
    third = Recorder(tmp_path / "c.rec", Ticks(monkeypatch).clock)
    third.resumed(950, second.spent())
    assert (third.goal_time, third.goal_wall_time) == (6, second.goal_wall_time)


def test_without_a_goal_none_is_reached(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path / "a.rec", PhaseClock())
    recorder.evaluation(1, 1e9)
    assert recorder.goal_time is None
    assert recorder.goal_wall_time is None


def test_samples_hold_what_was_read_and_nothing_else(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path / "a.rec", PhaseClock(), cpu_before=4.0)
    recorder.header({})
    recorder.sample({"monotonic": 0.0, "cpu_seconds": 10.0, "rss": 7})
    recorder.sample({"monotonic": 1.0, "machine_cpu_percent": 3})
    recorder.footer("completed", None, {})
    (table,) = [frame.payload["table"] for frame in read_frames(tmp_path / "a.rec") if frame.kind == "samples"]
    first, second = (dict(zip(SAMPLE_COLUMNS, row, strict=True)) for row in table)
    assert (first["cpu_seconds"], first["rss"]) == (6, 7)
    assert first["gpu_energy"] != first["gpu_energy"]  # not a number: nobody read it
    assert second["cpu_seconds"] != second["cpu_seconds"] and second["machine_cpu_percent"] == 3


def test_reported_values_are_timed_from_the_start_of_the_record(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path / "a.rec", PhaseClock())
    recorder.header({})
    recorder.value({"time": time.time() + 50, "step": 1, "loss": 2.0})
    recorder.value({"time": None, "step": None, "loss": 3.0})
    recorder.footer("completed", None, {})
    (entries,) = [frame.payload["entries"] for frame in read_frames(tmp_path / "a.rec") if frame.kind == "values"]
    assert 50 <= entries[0]["time"] < 500
    assert 0 <= entries[1]["time"] < 500
    assert entries[0]["values"] == {"loss": 2.0}


def test_more_values_than_a_frame_holds_are_all_kept(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path / "a.rec", PhaseClock())
    recorder.header({})
    for step in range(450):
        recorder.value({"time": None, "step": step, "loss": 1.0})
    recorder.footer("completed", None, {})
    found = [frame.payload["entries"] for frame in read_frames(tmp_path / "a.rec") if frame.kind == "values"]
    assert [entry["step"] for entries in found for entry in entries] == list(range(450))


def test_samples_that_look_only_at_memory_take_no_core_from_the_others(tmp_path: Path) -> None:
    """The first samples of a cell are a few hundredths of a second apart, and read no core and no GPU."""
    recorder = Recorder(tmp_path / "a.rec", PhaseClock())
    recorder.header({})
    for reading in ({"rss": 1.0}, {"rss": 2.0, "core_percent": [10.0, 20.0]}):
        recorder.sample({"monotonic": time.monotonic(), **reading})
    recorder.footer("completed", None, {})
    (payload,) = [each.payload for each in read_frames(tmp_path / "a.rec") if each.kind == "samples"]
    assert np.isnan(payload["core_percent"][0]).all()
    assert list(payload["core_percent"][1]) == [10, 20]
