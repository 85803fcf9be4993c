"""The record: what one rank of one attempt of a cell measured, as a stream of pickled frames.

File: ``RECORDS/<cell>.<attempt>.<node>.<rank>.rec``. It begins with a magic line; then follow frames::

    kind      1 byte    (:data:`KINDS`)
    length    4 bytes   big-endian, of the payload
    crc       4 bytes   CRC-32 of the payload
    payload   a pickle of built-in types only; an array is the tuple ("nd", dtype, shape, bytes)

Each frame is one write, so a crash loses at most the frame that was being written; the reader stops at the
last whole one. Reading trusts nothing: the unpickler constructs no class and calls no function.
"""

from __future__ import annotations

import io
import os
import pickle
import re
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

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
)
# What a header says of its own format; 1 had fewer columns of samples.
FORMAT = 2
SAMPLE_COLUMNS = (
    "time", "unix_time", "machine_cpu_percent", "machine_memory_percent", "machine_swap_percent", "machine_load",
    "cpu_seconds", "rss", "pss", "processes", "threads", "read_bytes", "written_bytes", "context_switches",
    "cgroup_cpu", "cgroup_memory", "cgroup_memory_peak",
    "gpu_percent", "gpu_memory", "gpu_own_memory", "gpu_power", "gpu_energy", "gpu_temperature", "gpu_clock", "gpu_throttle",
)  # fmt: skip
# One value for each core or GPU of the node: two-dimensional, float32.
SAMPLE_LISTS = ("core_percent", "each_gpu_percent", "each_gpu_memory", "each_gpu_power")
MAX_FRAME = 64 * 1024 * 1024
_HEAD = struct.Struct(">BII")
_DTYPES = frozenset({"<f8", "<f4", "<i8", "<i4", "|b1"})


class RecordError(Exception):
    """A record that cannot be read, and why."""


@dataclass(frozen=True)
class Frame:
    kind: str
    payload: dict[str, Any]


def record_name(cell: str, attempt: str, node: str, rank: int) -> str:
    """Return the file name of a record; the parts hold no dot of their own."""
    return ".".join(part.replace(".", "-") for part in (cell, attempt, node, f"r{rank}")) + SUFFIX


class RecordWriter:
    """Appends frames to a new record. A full or vanished disk is noted and survived: it never raises."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.lost = 0
        self.problem: str | None = None
        self._size = 0
        self._handle: int | None = None
        self._pending = MAGIC

    def write(self, kind: str, payload: dict[str, Any]) -> bool:
        """Append one frame; return whether it is in the file."""
        data = pickle.dumps(_encode(payload), protocol=4)
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
            return True
        except OSError as error:
            self.lost += 1
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


def read_frames(path: Path, kinds: frozenset[str] | None = None) -> Iterator[Frame]:
    """Read the whole frames of a record, all kinds or only some (the others are not even unpickled).

    Raises:
        RecordError: it is no record, or a frame is damaged, hostile or too large. A record that merely
            ends in the middle of a frame is read up to there.
    """
    try:
        with path.open("rb") as file:
            magic = file.read(len(MAGIC))
            if magic != MAGIC:
                raise RecordError("is empty" if not magic else "is not a record of this format (wrong first line)")
            while len(head := file.read(_HEAD.size)) == _HEAD.size:
                number, length, checksum = _HEAD.unpack(head)
                if number >= len(KINDS) or length > MAX_FRAME:
                    raise RecordError(f"has a damaged frame at byte {file.tell() - _HEAD.size}")
                data = file.read(length)
                if len(data) < length:
                    return
                kind = KINDS[number]
                if kinds is not None and kind not in kinds:
                    continue
                if zlib.crc32(data) != checksum:
                    raise RecordError(f"has a damaged frame at byte {file.tell() - length} (wrong checksum)")
                payload = _decoded(loads(data), len(data))
                if not isinstance(payload, dict):
                    raise RecordError(f"has a {kind} frame that is not a mapping")
                yield Frame(kind, payload)
    except OSError as error:
        raise RecordError(f"cannot be read: {error.strerror}") from None


# LONG_BINPUT or PUT with a memo index beyond a million, for which C's unpickler would allocate up to 64 GiB.
_HUGE_MEMO = re.compile(rb"r(?:..[\x10-\xff].|...[\x01-\xff])|p\d{7}", re.DOTALL)


class _Refusals:
    def find_class(self, module: str, name: str) -> Any:
        raise RecordError(f"names {module}.{name}: a record holds built-in types only")

    def persistent_load(self, pid: Any) -> Any:
        raise RecordError("holds a persistent id: a record holds built-in types only")


class _NoTrust(_Refusals, pickle.Unpickler):
    """C's unpickler, refusing every name."""


class _NoTrustNoArray(_Refusals, pickle._Unpickler):
    """Python's own unpickler, whose memo is a dictionary: slower, and no index makes it allocate."""


def loads(data: bytes) -> Any:
    """Unpickle built-in types only.

    Raises:
        RecordError: the pickle names a class or function, is damaged, or would need far more memory than it has bytes.
    """
    try:
        chosen = _NoTrustNoArray if _HUGE_MEMO.search(data) else _NoTrust
        return chosen(io.BytesIO(data)).load()
    except RecordError:
        raise
    except (MemoryError, OverflowError, RecursionError) as error:
        raise RecordError(f"has a frame that is too large or too deep ({type(error).__name__})") from None
    except Exception as error:  # whatever nonsense makes an unpickler raise
        raise RecordError(f"has a damaged frame ({type(error).__name__}: {error})") from None


def _encode(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        array = np.ascontiguousarray(value)
        if array.dtype.str not in _DTYPES:
            raise TypeError(f"an array of {array.dtype} does not go into a record")
        return ("nd", array.dtype.str, array.shape, array.tobytes())
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, dict):
        return {key: _encode(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_encode(each) for each in value]
    if value is None or isinstance(value, str | int | float | bool | bytes):
        return value
    raise TypeError(f"{type(value).__name__} does not go into a record")


def _decoded(value: Any, length: int) -> Any:
    """Rebuild the arrays of a payload that was unpickled from `length` bytes.

    Raises:
        RecordError: it refers to itself, or to its parts so often that it would grow beyond what its bytes could hold.
    """
    budget = length  # each value of an honest pickle takes a byte at least

    def rebuilt(value: Any) -> Any:
        nonlocal budget
        budget -= 1
        if budget < 0:
            raise RecordError("has a frame that unfolds to more than its bytes can hold")
        if isinstance(value, tuple):
            return _array(value)
        if isinstance(value, dict):
            return {key: rebuilt(each) for key, each in value.items()}
        if isinstance(value, list):
            return [rebuilt(each) for each in value]
        return value

    try:
        return rebuilt(value)
    except RecursionError:
        raise RecordError("has a frame that is too deep") from None


def _array(value: tuple[Any, ...]) -> NDArray[Any]:
    match value:
        case ("nd", str() as dtype, tuple() as shape, bytes() as data) if dtype in _DTYPES:
            try:
                return np.frombuffer(data, dtype=dtype).reshape(shape)
            except (ValueError, TypeError) as error:
                raise RecordError(f"has a damaged array ({error})") from None
    raise RecordError("holds a tuple that is not an array")
