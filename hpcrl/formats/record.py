"""The record: what one rank of one attempt of a cell measured, as a stream of pickled frames.

File: ``RECORDS/<cell>.<attempt>.<node>.<rank>.rec``. It begins with a magic line; then follow frames::

    kind      1 byte    (:data:`KINDS`)
    length    4 bytes   big-endian, of the payload
    crc       4 bytes   CRC-32 of the payload
    payload   a pickle of built-in types only: {"facts": JSON text, an array's name: ("nd", dtype, shape, bytes), ...}

Each frame is one write, so a crash loses at most the frame that was being written; the reader stops at the
last whole one. Reading trusts nothing: :mod:`hpcrl.formats.pickles` can build nothing but plain values.
"""

from __future__ import annotations

import io
import json
import os
import pickle
import struct
import time
import zlib
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from hpcrl.formats.files import opener_of_stranger
from hpcrl.formats.pickles import MAX_TEXT, PickleError, loads

MAGIC = b"hpcrl-record 1\n"
SUFFIX = ".rec"
KINDS = (
    "header",
    "samples",
    "episodes",
    "evaluations",
    "phases",
    "progress",
    "values",
    "event",
    "footer",
    "calibration",
)
# The format that a header names. 1 had fewer columns of samples; 1 and 2 had an array for each column and
# no JSON; 3 lacked the last columns of samples; 4 lacked the last columns of evaluations. All are still read.
UNMEASURED = "telemetry did not run"  # beginning of the event's text
FORMAT = 5
SAMPLE_COLUMNS = (
    "time", "unix_time", "machine_cpu_percent", "machine_memory_percent", "machine_swap_percent", "machine_load",
    "cpu_seconds", "rss", "pss", "processes", "threads", "read_bytes", "written_bytes", "context_switches",
    "cgroup_cpu", "cgroup_memory", "cgroup_memory_peak",
    "gpu_percent", "gpu_memory", "gpu_own_memory", "gpu_power", "gpu_energy", "gpu_temperature", "gpu_clock", "gpu_throttle",
    "memory_peak", "cpu_energy",
)  # fmt: skip
# One value for each core or GPU of the node: two-dimensional, float32.
SAMPLE_LISTS = ("core_percent", "each_gpu_percent", "each_gpu_memory", "each_gpu_power")
# The columns of the frames that are one table: float64, (rows, columns), named `table`.
TABLES = {
    "episodes": ("step", "time", "value", "length"),
    # `began`: when the evaluation did; `spent`: seconds of the evaluations before it
    "evaluations": ("step", "time", "value", "began", "spent"),
    "samples": SAMPLE_COLUMNS,
    "progress": ("step", "total", "time"),
}
MAX_BYTES = 1024**3  # of a record
MAX_FRAME = 64 * 1024 * 1024
MAX_FACTS = MAX_TEXT  # characters of a frame's JSON
MAX_CONTAINERS = 100_000  # lists and mappings in it; of those alone, two million characters would take 200 MB
_MOST_LAYOUTS, _MOST_BETWEEN = 500, 4096  # remembered; bytes of such a frame that are not its arrays
_BLOCK = 1024 * 1024  # bytes read at once
_HEAD = struct.Struct(">BII")
_BEFORE_FACTS, _, _AFTER_FACTS = pickle.dumps({"facts": "?"}, protocol=3).partition(b"\x01\0\0\0?")
_DTYPES = frozenset({"<f8", "<f4", "<i8", "<i4", "|b1"})


class RecordError(Exception):
    """A record that cannot be read, and why."""


class Layout:
    """What frames of one layout share: their facts; names, types and shapes of their arrays; all bytes around these.

    A frame of a known layout need not be unpickled: the same bytes around the arrays unpickle to the same value around
    them, whoever wrote them.
    """

    def __init__(
        self,
        facts: dict[str, Any],
        arrays: dict[str, tuple[np.dtype[Any], tuple[int, ...]]],
        cuts: Sequence[bytes] = (),
    ) -> None:
        self.facts = facts
        self.arrays = arrays
        if cuts:
            self._cut = struct.Struct("".join(f"{len(cut)}s" for cut in cuts))
            self._between = tuple(cuts[::2])

    def arrays_of(self, data: bytes) -> tuple[bytes, ...] | None:
        """Return the arrays of a frame of the same length; None if it has another layout."""
        cuts = self._cut.unpack(data)
        return cuts[1::2] if cuts[::2] == self._between else None


Layouts = dict[tuple[int, int], Layout]  # by the number of the kind and the length of the frame


class Frame(NamedTuple):
    """One frame; `arrays` are the bytes of each array of its layout."""

    kind: str
    layout: Layout
    arrays: tuple[bytes, ...]

    @property
    def payload(self) -> dict[str, Any]:
        if not self.arrays:
            return self.layout.facts
        kinds = self.layout.arrays.items()
        arrays = {
            name: np.frombuffer(data, dtype).reshape(shape)
            for (name, (dtype, shape)), data in zip(kinds, self.arrays, strict=True)
        }
        return arrays | self.layout.facts


def record_name(cell: str, attempt: str, node: str, rank: int) -> str:
    """Return the file name of a record; the parts hold no dot of their own."""
    return ".".join(part.replace(".", "-") for part in (cell, attempt, node, f"r{rank}")) + SUFFIX


class RecordWriter:
    """Appends frames to a new record. A full, read-only or vanished disk is noted and survived: it never raises."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.problem: str | None = None
        self._size = 0
        self._handle: int | None = None
        self._pending = MAGIC

    def write(self, kind: str, payload: dict[str, Any]) -> bool:
        """Append one frame of plain facts and arrays; return whether it is in the file.

        Raises:
            TypeError: a value cannot be stored in a record.
        """
        data = pickle.dumps(_encoded(payload), protocol=3)
        frame = self._pending + _HEAD.pack(KINDS.index(kind), len(data), zlib.crc32(data)) + data
        try:
            if self._handle is None:
                self.path.parent.mkdir(parents=True, exist_ok=True)
                self._handle = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
            written = os.write(self._handle, frame)
            while written < len(frame):
                written += os.write(self._handle, frame[written:])
            self._size += len(frame)
            self._pending = b""
            if os.fstat(self._handle).st_nlink == 0:
                self.problem = f"{self.path}: has been deleted"
            return True
        except OSError as error:
            self.problem = f"{self.path}: {error.strerror}"
            if self._handle is not None:
                # Take back the part of a frame that did fit, so that later frames can still be read.
                try:
                    os.ftruncate(self._handle, self._size)
                    os.lseek(self._handle, self._size, os.SEEK_SET)
                except OSError:
                    pass
            return False

    def close(self) -> None:
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None


def end_record(path: Path, facts: dict[str, Any]) -> bool:
    """Append the footer to a record whose writer was killed, after its last whole frame; tell whether it is there.

    Args:
        facts: of the footer; `wall_time` is added, by the wall clock.
    """
    try:
        with open(path, "r+b", opener=opener_of_stranger) as file:
            end, started, has_footer = len(MAGIC), None, False
            file.seek(end)
            while len(head := file.read(_HEAD.size)) == _HEAD.size:
                number, length, checksum = _HEAD.unpack(head)
                data = file.read(length) if length <= MAX_FRAME else b""
                if len(data) < length or zlib.crc32(data) != checksum:
                    break
                if KINDS[number] == "header":
                    started = _decoded("header", data)[0].facts.get("started")
                has_footer |= KINDS[number] == "footer"
                end = file.tell()
            if has_footer or started is None:
                return False
            file.truncate(end)
            file.seek(end)
            content = pickle.dumps(_encoded({**facts, "wall_time": max(0.0, time.time() - started)}), protocol=3)
            file.write(_HEAD.pack(KINDS.index("footer"), len(content), zlib.crc32(content)) + content)
    except (OSError, RecordError):
        return False
    return True


def read_frames(
    path: str | Path, kinds: frozenset[str] | None = None, layouts: Layouts | None = None
) -> Iterator[Frame]:
    """Read the whole frames of a record, all kinds or only some (the others are not even unpickled).

    Args:
        layouts: the layouts of frames read so far, extended by this call; pass the same one for many records.

    Raises:
        RecordError: it is not a record, or a frame is damaged, hostile or too large. A record that only
            ends in the middle of a frame is read up to there.
    """
    layouts = {} if layouts is None else layouts
    wanted = [kinds is None or kind in kinds for kind in KINDS]
    try:
        with io.FileIO(path, opener=opener_of_stranger) as file:
            for number, checksum, data, position in _payloads(file, wanted):
                if zlib.crc32(data) != checksum:
                    raise RecordError(f"has a damaged frame at byte {position} (wrong checksum)")
                key = number, len(data)
                layout = layouts.get(key)
                arrays = layout.arrays_of(data) if layout else None
                if layout is None or arrays is None:
                    layout, arrays, known = _decoded(KINDS[number], data)
                    if known and len(layouts) < _MOST_LAYOUTS:
                        layouts[key] = layout
                del data  # a large frame is not held beside its arrays
                yield Frame(KINDS[number], layout, arrays)
    except OSError as error:
        raise RecordError(f"cannot be read: {error.strerror}") from None


def _payloads(file: io.FileIO, wanted: Sequence[bool]) -> Iterator[tuple[int, int, bytes, int]]:
    """Give each whole frame of the wanted kinds: number of its kind, checksum, payload, place in the file."""
    if (size := os.fstat(file.fileno()).st_size) > MAX_BYTES:
        raise RecordError(f"has {size} bytes: the maximum is {MAX_BYTES}")
    unpack, head_size, kinds, most = _HEAD.unpack_from, _HEAD.size, len(KINDS), MAX_FRAME
    # A buffer much larger than what is read costs more than the reading.
    block = file.read(min(_BLOCK, size))
    if not block.startswith(MAGIC):
        raise RecordError("is empty" if not block else "is not a record of this format (wrong first line)")
    before, at = 0, len(MAGIC)  # of the file before this block; in this block
    while True:
        start = at + head_size
        if start <= len(block):
            number, length, checksum = unpack(block, at)
            if number >= kinds or length > most:
                raise RecordError(f"has a damaged frame at byte {before + at}")
            end = start + length
            if not length or before + end > size:
                return  # the frame that was being written; or zeros, as a crash of the file system leaves them
            if end <= len(block):
                if wanted[number]:
                    yield number, checksum, block[start:end], before + at
                at = end
                continue
            if length >= _BLOCK:  # read by itself: in a block it would take its memory twice
                place, payload = before + at, before + start
                before, block, at = before + end, b"", 0
                if wanted[number]:
                    file.seek(payload)  # its beginning is read again: to join it would take the memory twice
                    yield number, checksum, _exactly(file, length), place
                else:
                    file.seek(before)
                continue
        if not (more := file.read(min(_BLOCK, size - before - len(block)))):
            return
        block, before, at = block[at:] + more, before + at, 0


def _exactly(file: io.FileIO, size: int) -> bytes:
    data = file.read(size)
    while len(data) < size:
        if not (more := file.read(size - len(data))):
            raise RecordError("was cut short while it was read")
        data += more
    return data


def _encoded(payload: dict[str, Any]) -> dict[str, Any]:
    arrays: dict[str, Any] = {}
    facts: dict[str, Any] = {}
    for name, value in payload.items():
        if isinstance(value, np.ndarray):
            array = np.ascontiguousarray(value)
            if array.dtype.str not in _DTYPES:
                raise TypeError(f"{name}: an array of {array.dtype} cannot be stored in a record")
            arrays[name] = ("nd", array.dtype.str, array.shape, array.tobytes())
        else:
            facts[name] = value
    return {"facts": json.dumps(facts, default=_plain, separators=(",", ":")), **arrays} if facts else arrays


def _plain(value: Any) -> Any:
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"{type(value).__name__} cannot be stored in a record")


def _decoded(kind: str, data: bytes) -> tuple[Layout, tuple[bytes, ...], bool]:
    """Unpickle a frame; the last value says whether another frame may have the same layout."""
    if (facts_only := _facts_only(data)) is not None:
        return Layout(_facts(kind, facts_only), {}), (), False
    places: list[tuple[int, int]] = []
    try:
        raw = loads(data, places)
    except PickleError as error:
        raise RecordError(f"has a frame ({kind}) that {error}") from None
    if not isinstance(raw, dict):
        raise RecordError(f"has a frame ({kind}) that is not a mapping")
    text = raw.get("facts")
    facts = _facts(kind, text) if isinstance(text, str) else {}
    # Records of formats 1 and 2 have other values here.
    rest = {name: value for name, value in raw.items() if value is not text}
    arrays = {name: _array(kind, value) for name, value in rest.items() if isinstance(value, tuple)}
    facts = {name: value for name, value in rest.items() if name not in arrays} | facts
    kinds = {name: (dtype, shape) for name, (dtype, shape, _) in arrays.items()}
    small = len(data) - sum(size for _, size in places) < _MOST_BETWEEN
    known = small and 0 < len(arrays) == len(places)
    return (
        Layout(facts, kinds, _cuts(data, places) if known else ()),
        tuple(piece for *_, piece in arrays.values()),
        known,
    )


def _cuts(data: bytes, places: list[tuple[int, int]]) -> list[bytes]:
    """Cut a frame before and after each place; every second one is what lies there."""
    bounds = [0, *(bound for start, size in places for bound in (start, start + size)), len(data)]
    return [data[start:end] for start, end in pairwise(bounds)]


def _facts_only(data: bytes) -> str | None:
    """Return the text of a frame that the writer made of facts alone; such bytes can mean nothing else."""
    start, size = len(_BEFORE_FACTS) + 4, len(data) - len(_BEFORE_FACTS) - 4 - len(_AFTER_FACTS)
    if not (data.startswith(_BEFORE_FACTS + max(0, size).to_bytes(4, "little")) and data.endswith(_AFTER_FACTS)):
        return None
    if size > MAX_FACTS:
        raise RecordError(f"has a frame with {size} bytes of facts: the maximum is {MAX_FACTS}")
    try:
        return data[start : start + size].decode()
    except UnicodeDecodeError:
        return None


def _facts(kind: str, text: str) -> dict[str, Any]:
    if len(text) > MAX_FACTS:
        raise RecordError(f"has a frame ({kind}) with {len(text)} characters of facts: the maximum is {MAX_FACTS}")
    if len(text) > MAX_CONTAINERS and (many := text.count("[") + text.count("{")) > MAX_CONTAINERS:
        raise RecordError(
            f"has a frame ({kind}) whose facts contain {many} lists and mappings: the maximum is {MAX_CONTAINERS}"
        )
    try:
        facts = json.loads(text)
        if "\\u" in text:  # a lone surrogate, as in the name of a file that is not UTF-8, becomes a question mark
            facts = json.loads(json.dumps(facts, ensure_ascii=False).encode(errors="replace"))
    except (ValueError, RecursionError) as error:
        raise RecordError(f"has a frame ({kind}) whose facts are not JSON ({error})") from None
    if not isinstance(facts, dict):
        raise RecordError(f"has a frame ({kind}) whose facts are not a mapping")
    return facts


def _array(kind: str, value: tuple[Any, ...]) -> tuple[np.dtype[Any], tuple[int, ...], bytes]:
    match value:
        case ("nd", str() as dtype, tuple() as shape, bytes() as data) if dtype in _DTYPES:
            try:
                array = np.frombuffer(data, dtype).reshape(shape)
            except (ValueError, TypeError) as error:
                raise RecordError(f"has a frame ({kind}) with a damaged array ({error})") from None
            return array.dtype, array.shape, data
    raise RecordError(f"has a frame ({kind}) with a tuple that is not an array")
