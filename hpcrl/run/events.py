"""Write the TensorBoard events of a cell: while it trains, or from its record after its last measurement."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from hpcrl.formats.events import EPISODE, EVALUATION, EventFile, file_name
from hpcrl.formats.record import TABLES, RecordError, read_frames

DURING = "TensorBoard events were written during the measurement"
_CPU, _MEMORY = (TABLES["samples"].index(f"machine_{name}_percent") for name in ("cpu", "memory"))


class LiveEvents:
    """The events of a training that runs. A disk that is full ends them, and the training continues.

    Args:
        directory: the cell's own.
    """

    phase = "tensorboard"

    def __init__(self, directory: Path, started: float, node: str, attempt: str) -> None:
        self._open: Callable[[], EventFile] = lambda: EventFile(directory / file_name(started, node, attempt), started)
        self._file: EventFile | None = None
        self._failed = False

    def add(self, samples: Iterable[Sequence[float]], kind: str, row: Sequence[float], resumed: int | None) -> None:
        """Add rows of samples, and one of episodes or evaluations.

        Args:
            resumed: the step of the checkpoint from which the training continued.
        """
        self._try(lambda file: _add(file, [*(("samples", sample) for sample in samples), (kind, row)]), resumed)

    def flush(self) -> None:
        if self._file:
            self._try(EventFile.flush)

    def close(self, samples: Iterable[Sequence[float]], footer: Mapping[str, Any], phases: Mapping[str, float]) -> None:
        """Add the last samples and the phases, and close the file, if there is one."""
        if self._file is None:
            return
        self._try(lambda file: _add(file, [("samples", sample) for sample in samples]))
        self._try(lambda file: file.phases(footer["wall_time"], phases))
        self._try(EventFile.close)

    def _try(self, action: Callable[[EventFile], None], resumed: int | None = None) -> None:
        if self._failed:
            return
        try:
            if self._file is None:
                self._file = self._open()
                self._file.begin(_first_step(resumed))
            action(self._file)
        except OSError as error:
            self._failed = True
            _say(error)


def write_events(record: Path, directory: Path, node: str, attempt: str) -> None:
    """Write the events of a complete record. If they cannot be written, the reason is printed: the record is not changed."""
    rows: list[tuple[str, Sequence[float]]] = []
    facts: dict[str, dict[str, Any]] = {}
    try:
        for frame in read_frames(record):
            if frame.kind in TABLES:
                rows += [(frame.kind, row) for row in frame.payload["table"].tolist()]
            elif frame.kind in ("header", "phases", "footer"):
                facts[frame.kind] = frame.payload
        started, footer = float(facts["header"]["started"]), facts["footer"]
        file = EventFile(directory / file_name(started, node, attempt), started)
        file.begin(_first_step(footer.get("resumed_step")))
        _add(file, sorted(rows, key=lambda row: row[1][TABLES[row[0]].index("time")]))
        file.phases(footer["wall_time"], facts["phases"]["seconds"])
        file.close()
    except (OSError, RecordError, KeyError) as error:  # KeyError: the record has not all frames, as on a full disk
        _say(error)


def _add(file: EventFile, rows: Iterable[tuple[str, Sequence[float]]]) -> None:
    for kind, row in rows:
        if kind == "samples":
            file.machine(row[0], row[_CPU], row[_MEMORY])
        elif kind in ("episodes", "evaluations"):
            step, time, value = row[:3]
            file.scalar(EPISODE if kind == "episodes" else EVALUATION, time, value, int(step))


def _first_step(resumed: int | None) -> int:
    return 0 if resumed is None else resumed + 1


def _say(error: Exception) -> None:
    print(f"hpcrl: the TensorBoard events cannot be written: {error}", file=sys.stderr)
