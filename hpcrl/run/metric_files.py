"""Read values from a program's own files: TensorBoard event files, a CSV file, W&B's offline runs.

The program does not need a change for hpcrl. Its files are read after its end, with the libraries of its own
environment, so that reading is not part of the measurement.
"""

from __future__ import annotations

import csv
import json
import math
import struct
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TextIO

from hpcrl.placeholders import fill

MOST_VALUES = 2_000_000
LONGEST_LINE = 1_000_000  # characters of a CSV file
LARGEST_RECORD = 64 * 1024**2  # bytes of W&B's offline runs
_BLOCK = 32_768
# Usual names of the column with the environment steps.
_STEPS = ("step", "steps", "global_step", "timesteps", "total_timesteps", "time/total_timesteps", "iteration", "epoch")


class UnreadableFile(Exception):
    """A file has a fault, which is the message."""


Entry = dict[str, Any]  # step and time (Unix seconds), which may be None; and numbers by name


def read_metric_files(
    wanted: Mapping[str, str | None], values: Mapping[str, Any], start: Path, since: float, note: Callable[[str], None]
) -> Iterator[Entry]:
    """Give the values of the files that were written since this start of the cell, in the files' order.

    Args:
        wanted: the study's `metrics`.
        start: the directory in which the command started.
        since: Unix seconds.
        note: called with a sentence for each file that could not be read.
    """
    left = MOST_VALUES
    for kind, read in _READERS.items():
        if not (text := wanted.get(kind)):
            continue
        place = start / fill(text, values)
        try:
            files = [path for path in _files(kind, place) if path.stat().st_mtime >= since - 1]
        except OSError as error:
            note(f"metrics.{kind}: {place}: cannot be read: {error.strerror}")
            continue
        if not files:
            note(f"metrics.{kind}: {place}: the command wrote no such file")
        for path in files:
            try:
                for entry in read(path, wanted.get("step")):
                    left -= len(entry) - len(("step", "time"))
                    if left < 0:
                        note(f"metrics: expected at most {MOST_VALUES} values, got more: the others are left out")
                        return
                    yield entry
            except ImportError as error:
                note(f"metrics.{kind}: {path}: cannot be read: {error.name} is not in the cell's environment")
            except UnreadableFile as error:
                note(f"metrics.{kind}: {path}: cannot be read: {str(error)[:200]}")
            except Exception as error:  # of a library, for a file that may be truncated
                note(f"metrics.{kind}: {path}: cannot be read: {type(error).__name__}: {str(error)[:200]}")


def _files(kind: str, place: Path) -> list[Path]:
    if kind == "csv":
        return [place] if place.is_file() else []
    pattern = "*tfevents*" if kind == "tensorboard" else "*.wandb"
    return sorted(path for path in place.rglob(pattern) if path.is_file())


def _tensorboard(path: Path, step: str | None) -> Iterator[Entry]:
    from tensorboard.backend.event_processing.event_file_loader import EventFileLoader
    from tensorboard.util.tensor_util import make_ndarray

    for event in EventFileLoader(str(path)).Load():
        for value in event.summary.value:
            if value.metadata.plugin_data.plugin_name == "scalars":
                yield {
                    "step": int(event.step),
                    "time": float(event.wall_time),
                    value.tag: float(make_ndarray(value.tensor).item()),
                }


def _csv(path: Path, step: str | None) -> Iterator[Entry]:
    with path.open(newline="", encoding="utf-8", errors="replace") as file:
        reader = csv.DictReader(_lines(file))
        names = reader.fieldnames or ()
        if step is not None and step not in names:
            raise UnreadableFile(f"expected a column {step!r}, got {', '.join(names[:12])}")
        counts = step or next((name for name in _STEPS if name in names), None)
        for row in reader:
            numbers = {name: number for name, text in row.items() if name and (number := _number(text)) is not None}
            at = numbers.pop(counts, None) if counts else None
            if numbers:
                yield {"step": None if at is None or abs(at) >= 2**62 else int(at), "time": None, **numbers}


def _lines(file: TextIO) -> Iterator[str]:
    number = 0
    while line := file.readline(LONGEST_LINE + 1):
        number += 1
        if len(line) > LONGEST_LINE:
            raise UnreadableFile(f"line {number} has more than {LONGEST_LINE:,} characters")
        yield line


def _wandb(path: Path, step: str | None) -> Iterator[Entry]:
    from wandb.proto.wandb_internal_pb2 import Record

    for data in _log_records(path):
        record = Record()
        record.ParseFromString(data)
        if record.WhichOneof("record_type") != "history":
            continue
        items = {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in record.history.item}
        at, when = items.pop("_step", None), items.pop("_timestamp", None)
        numbers = {
            name: float(value) for name, value in items.items() if _is_number(value) and not name.startswith("_")
        }
        if numbers:
            yield {
                "step": at if isinstance(at, int) and abs(at) < 2**62 else None,
                "time": when if _is_number(when) else None,
                **numbers,
            }


def _log_records(path: Path) -> Iterator[bytes]:
    """Read the records of a log in LevelDB's format, which W&B uses for offline runs, up to the last complete one.

    Blocks of 32 KiB hold fragments: checksum (4 bytes), length (2), type (1: whole, 2: first, 3: middle, 4: last). W&B
    writes seven bytes of its own before the first block.
    Source: LevelDB, doc/log_format.md.
    """
    with path.open("rb") as file:
        if file.read(4) != b":W&B":
            raise UnreadableFile("it is not an offline run of W&B")
        file.seek(0)
        parts: list[bytes] = []
        size = 0
        first = 7
        while block := file.read(_BLOCK):
            position, first = first, 0
            while position + 7 <= len(block):
                _, length, kind = struct.unpack_from("<IHB", block, position)
                fragment = block[position + 7 : position + 7 + length]
                position += 7 + length
                if kind == 0 or len(fragment) < length:
                    break
                parts.append(fragment)
                size += length
                if size > LARGEST_RECORD:
                    raise UnreadableFile(f"it has a record of more than {LARGEST_RECORD // 1024**2} MiB")
                if kind in (1, 4):
                    yield b"".join(parts)
                    parts, size = [], 0


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _number(text: Any) -> float | None:
    try:
        number = float(text)
    except (TypeError, ValueError):
        return None
    return number if math.isfinite(number) else None


_READERS: dict[str, Callable[[Path, str | None], Iterator[Entry]]] = {
    "tensorboard": _tensorboard,
    "csv": _csv,
    "wandb": _wandb,
}
