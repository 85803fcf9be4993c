"""Event files, read by TensorBoard's own library."""

from __future__ import annotations

import math
from pathlib import Path

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.backend.event_processing.event_file_loader import RawEventFileLoader
from tensorboard.compat.proto.event_pb2 import Event

from hpcrl.formats.events import EventFile, file_name


def read(directory: Path) -> dict[str, list[tuple[int, float]]]:
    opened = EventAccumulator(str(directory))
    opened.Reload()
    return {tag: [(each.step, each.value) for each in opened.Scalars(tag)] for tag in opened.Tags()["scalars"]}


def test_tensorboard_reads_every_number_that_has_a_place_in_an_event(tmp_path: Path) -> None:
    values = [0.0, -1.5, 1e300, -math.inf, math.nan, 3.25]
    steps = [0, 1, 127, 128, 300, 2**40]
    path = tmp_path / file_name(1_700_000_000.5, "n1.site.edu", "12_3-0")
    assert path.name == "events.out.tfevents.1700000000.n1.site.edu.12_3-0"
    file = EventFile(path, 1_700_000_000.5)
    for step, value in zip(steps, values, strict=True):
        file.scalar("größe/x", float(step % 7), value, step)
    file.machine(9.0, 12.5, math.nan)
    file.close()
    found = read(tmp_path)
    assert [step for step, _ in found["größe/x"]] == steps
    assert str([value for _, value in found["größe/x"]]) == "[0.0, -1.5, inf, -inf, nan, 3.25]"
    assert found["machine/cpu_percent"] == [(2**40, 12.5)]
    assert "machine/memory_percent" not in found
    events = [Event.FromString(each) for each in RawEventFileLoader(str(path)).Load()]  # checks the checksums
    assert events[0].file_version == "brain.Event:2"
    assert [each.wall_time - 1_700_000_000.5 for each in events] == [0, 0, 1, 1, 2, 6, 2**40 % 7, 9]


def test_an_attempt_replaces_what_earlier_ones_wrote_after_its_first_step(tmp_path: Path) -> None:
    for number, first in enumerate((0, 21)):
        file = EventFile(tmp_path / file_name(10.0 + number, "n", "a"), 10.0 + number)
        file.begin(first)
        for step in range(first - first % 10 + 10 * bool(first), 50 - 10 * number, 10):
            file.scalar("x", 0.0, number, step)
        file.close()
    assert read(tmp_path)["x"] == [(0, 0), (10, 0), (20, 0), (30, 1)]
