"""What the tests of collecting share."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hpcrl.collect.merge import Collected, collect
from hpcrl.formats.record import KINDS, RecordWriter, read_frames
from hpcrl.slurm.client import Completed, Slurm


def no_slurm() -> Slurm:
    """A scheduler that nobody has."""
    return Slurm(lambda arguments, cwd, timeout: Completed(1, "", "no such thing"))


def gathered(dataset: Path, *plans: Path) -> Collected:
    return collect(plans, dataset, no_slurm())


@contextmanager
def rewritten(path: Path, **header: Any) -> Iterator[RecordWriter]:
    """Begin a record anew with the same header, or some changes to it."""
    facts = next(iter(read_frames(path))).payload
    path.unlink()
    writer = RecordWriter(path)
    writer.write("header", facts | header)
    yield writer
    writer.close()


def raw_frame(kind: str, data: bytes) -> bytes:
    """A whole frame around any bytes."""
    return struct.pack(">BII", KINDS.index(kind), len(data), zlib.crc32(data)) + data
