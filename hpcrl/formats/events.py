"""TensorBoard event files of a run: its returns, the load of the machine, and its phases, as scalars.

TensorBoard's own writer and its dependencies are not in the environments of cells, and not each framework has a writer. So
hpcrl writes the few messages that scalars need. The cost is then the same in every environment.

A file is a sequence of records: length (8 bytes, little-endian), masked CRC-32C of the length, data, masked CRC-32C of
the data. The data are messages ``Event`` in the wire format of Protocol Buffers.
Sources: TensorFlow, lib/io/record_writer.h; TensorBoard, compat/proto/event.proto and summary.proto.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping
from functools import cache
from pathlib import Path

EPISODE, EVALUATION = "return/episode", "return/evaluation"
_VARINT, _DOUBLE, _BYTES, _FLOAT = 0, 1, 2, 5  # wire types
_WALL_TIME, _STEP, _FILE_VERSION, _SUMMARY, _SESSION_LOG = 1, 2, 3, 5, 7  # fields of Event
_VALUE, _TAG, _SIMPLE_VALUE = 1, 1, 2  # fields of Summary and of Summary.Value
_STATUS, _START = 1, 1  # field of SessionLog, and its value


def file_name(started: float, node: str, attempt: str) -> str:
    """Return the name of an attempt's event file; the names of a cell's attempts are in order of time."""
    return f"events.out.tfevents.{int(started):010d}.{node}.{attempt}"


class EventFile:
    """The scalars of one attempt. Times are seconds since its start.

    Args:
        path: a file that does not exist yet.
        started: Unix seconds.

    Raises:
        OSError: here and in the methods, if the file cannot be written.
    """

    def __init__(self, path: Path, started: float) -> None:
        self._started = started
        self._step = 0
        self._file = path.open("xb")
        self._write(0.0, 0, _text(_FILE_VERSION, b"brain.Event:2"))

    def begin(self, step: int) -> None:
        """Tell TensorBoard to forget what earlier attempts of the cell wrote for this step and later ones."""
        self._write(0.0, step, _text(_SESSION_LOG, _number(_STATUS, _START)))

    def scalar(self, tag: str, time: float, value: float, step: int | None = None) -> None:
        """Add one value. Without a step it gets that of the value before it."""
        if step is not None:
            self._step = step
        entry = _text(_TAG, tag.encode()) + _key(_SIMPLE_VALUE, _FLOAT) + struct.pack("<f", _within(value))
        self._write(time, self._step, _text(_SUMMARY, _text(_VALUE, entry)))

    def machine(self, time: float, cpu_percent: float, memory_percent: float) -> None:
        """Add a sample of the whole machine, if it has these values."""
        for name, value in (("cpu", cpu_percent), ("memory", memory_percent)):
            if not math.isnan(value):
                self.scalar(f"machine/{name}_percent", time, value)

    def phases(self, time: float, seconds: Mapping[str, float]) -> None:
        """Add the seconds in each phase."""
        for name, value in seconds.items():
            self.scalar(f"phase/{name}", time, value)

    def flush(self) -> None:
        self._file.flush()

    def close(self) -> None:
        self._file.close()

    def _write(self, time: float, step: int, rest: bytes) -> None:
        event = _key(_WALL_TIME, _DOUBLE) + struct.pack("<d", self._started + time) + _number(_STEP, step) + rest
        length = struct.pack("<Q", len(event))
        self._file.write(length + _checksum(length) + event + _checksum(event))


def _within(value: float) -> float:
    """Return a value that fits in 32 bits."""
    return math.copysign(math.inf, value) if abs(value) > 3.4e38 else value


def _varint(number: int) -> bytes:
    number &= 2**64 - 1
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    return bytes([*out, number])


def _key(field: int, kind: int) -> bytes:
    return _varint(field << 3 | kind)


def _number(field: int, value: int) -> bytes:
    return _key(field, _VARINT) + _varint(value)


def _text(field: int, value: bytes) -> bytes:
    return _key(field, _BYTES) + _varint(len(value)) + value


def _checksum(data: bytes) -> bytes:
    """Return the masked CRC-32C of some bytes (polynomial of Castagnoli)."""
    table = _table()
    crc = 0xFFFFFFFF
    for byte in data:
        crc = table[(crc ^ byte) & 0xFF] ^ crc >> 8
    crc ^= 0xFFFFFFFF
    return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)


@cache
def _table() -> tuple[int, ...]:
    table = []
    for crc in range(256):
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
        table.append(crc)
    return tuple(table)
