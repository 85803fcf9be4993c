"""Local queues of one plan: what each sees of the others."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from hpcrl.formats.queues import FOLDER, Held, Queue, orphans, read_queues


def test_a_queue_sees_what_the_tasks_of_others_hold_as_long_as_they_live(tmp_path: Path) -> None:
    first, second = (Queue(tmp_path, [f"hpcrl-0000000{number}-1-abcdef"]) for number in (1, 2))
    task = subprocess.Popen(["sleep", "60"])
    first.runs([(task.pid, [0, 1], ["GPU-7"])])
    with second.turn() as held:
        assert held == Held({0, 1}, {"GPU-7"}, 1)
    with first.turn() as held:
        assert held == Held()  # its own are its own affair
    assert orphans(tmp_path) == 0  # the queue lives: it is this process
    file = next(path for path in (tmp_path / FOLDER).iterdir() if "00000001" in path.name)
    content = json.loads(file.read_text())
    file.write_text(json.dumps(content | {"process_started": 1.0}))
    assert orphans(tmp_path) == 1
    task.kill()
    task.wait()
    assert orphans(tmp_path) == 0
    with second.turn() as held:
        assert held == Held()


def test_one_at_a_time_and_nobody_waits(tmp_path: Path) -> None:
    first, second = (Queue(tmp_path, [f"hpcrl-0000000{number}-1-abcdef"]) for number in (1, 2))
    with first.turn() as mine:
        assert mine is not None
        with second.turn() as other:
            assert other is None
    with second.turn() as other:
        assert other is not None


@pytest.mark.parametrize("running", [None, 3, [3], [{"cores": 1}], [{"pid": "x", "cores": [], "gpus": []}]])
def test_what_a_stranger_wrote_is_left_out(tmp_path: Path, running: object) -> None:
    queue = Queue(tmp_path, ["hpcrl-00000001-1-abcdef"])
    (tmp_path / FOLDER / "hpcrl-00000002-1-abcdef").write_text(json.dumps({"tokens": [], "running": running}))
    (tmp_path / FOLDER / "hpcrl-00000003-1-abcdef").write_text("[")
    os.mkfifo(tmp_path / FOLDER / "hpcrl-00000004-1-abcdef")
    os.mkfifo(tmp_path / FOLDER / "turn")
    with queue.turn() as held:
        assert held == Held()
    assert read_queues(tmp_path) == {"hpcrl-00000001-1-abcdef": True}
