from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from hpcrl.formats.record import read_frames
from hpcrl.run.recorder import Recorder
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
