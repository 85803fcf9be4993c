from __future__ import annotations

import os
import pickle
import resource
import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpcrl.formats.record import KINDS, MAGIC, RecordError, RecordWriter, loads, read_frames

SCALARS = (
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False) | st.text(max_size=20)
)
PAYLOADS = st.dictionaries(
    st.text(max_size=8),
    st.recursive(
        SCALARS, lambda each: st.lists(each, max_size=4) | st.dictionaries(st.text(max_size=4), each, max_size=3)
    ),
)


@settings(deadline=None)
@given(payloads=st.lists(PAYLOADS, max_size=5))
def test_what_is_written_reads_back(
    tmp_path_factory: pytest.TempPathFactory, payloads: list[dict[str, object]]
) -> None:
    path = tmp_path_factory.mktemp("r") / "x.rec"
    writer = RecordWriter(path)
    for payload in payloads:
        assert writer.write("event", payload)
    writer.close()
    if payloads:
        assert [frame.payload for frame in read_frames(path)] == payloads


def record(path: Path, frames: int = 5) -> Path:
    writer = RecordWriter(path)
    for number in range(frames):
        writer.write("samples", {"time": np.arange(number, dtype=np.float64), "n": np.float32(1.5)})
    writer.close()
    return path


def test_arrays_keep_type_and_shape(tmp_path: Path) -> None:
    writer = RecordWriter(tmp_path / "x.rec")
    arrays = {"a": np.arange(6, dtype=np.float32).reshape(2, 3), "b": np.array([], np.int64), "c": np.array([True])}
    writer.write("event", arrays)
    writer.close()
    (frame,) = read_frames(tmp_path / "x.rec")
    for name, array in arrays.items():
        assert frame.payload[name].dtype == array.dtype
        np.testing.assert_array_equal(frame.payload[name], array)


def test_cut_anywhere_it_reads_up_to_the_last_whole_frame(tmp_path: Path) -> None:
    whole = record(tmp_path / "x.rec").read_bytes()
    ends = []
    position = len(MAGIC)
    while position < len(whole):
        _, length, _ = struct.unpack(">BII", whole[position : position + 9])
        position += 9 + length
        ends.append(position)
    for cut in range(len(MAGIC), len(whole) + 1):
        (tmp_path / "cut.rec").write_bytes(whole[:cut])
        assert len(list(read_frames(tmp_path / "cut.rec"))) == sum(end <= cut for end in ends)


def test_a_flipped_bit_is_found(tmp_path: Path) -> None:
    whole = bytearray(record(tmp_path / "x.rec").read_bytes())
    whole[-3] ^= 1
    (tmp_path / "x.rec").write_bytes(whole)
    with pytest.raises(RecordError, match="wrong checksum"):
        list(read_frames(tmp_path / "x.rec"))


@pytest.mark.parametrize("content", [b"", b"hello", b"\x80\x04K\x01."])
def test_no_record_at_all(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "x.rec").write_bytes(content)
    with pytest.raises(RecordError, match=r"is empty|not a record"):
        list(read_frames(tmp_path / "x.rec"))


class Evil:
    def __init__(self, call: object, *arguments: object) -> None:
        self.call, self.arguments = call, arguments

    def __reduce__(self) -> tuple[object, ...]:
        return (self.call, self.arguments)


HOSTILE = {
    "os.system": pickle.dumps({"x": Evil(os.system, "touch pwned")}),
    "eval": pickle.dumps({"x": Evil(eval, "1+1")}),
    "getattr": pickle.dumps(Evil(getattr, "", "upper")),
    "protocol 0": b"cos\nsystem\n(S'touch pwned'\ntR.",
    "instance": b"(S'touch pwned'\nios\nsystem\n.",
    "extension": b"\x80\x02\x82\x01.",
    "persistent id": b"\x80\x04\x8c\x01xQ.",
    "numpy object": pickle.dumps(np.array([1, "a", None], object)),
    "no end": b"\x80\x04}",
    "nonsense": b"\xff\xfe\x00",
    "a huge length": b"\x80\x04\x8e" + struct.pack("<Q", 2**62) + b"x.",
    "depth": b"\x80\x04" + b"(" * 10**6,
    "a class": pickle.dumps(Path("x")),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_pickles_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.chdir(tmp_path)
    data = HOSTILE[name]
    with pytest.raises(RecordError):
        loads(data)
    frame = struct.pack(">BII", KINDS.index("event"), len(data), zlib.crc32(data)) + data
    (tmp_path / "x.rec").write_bytes(MAGIC + frame)
    with pytest.raises(RecordError):
        list(read_frames(tmp_path / "x.rec"))
    assert not (tmp_path / "pwned").exists()


NAMES = [
    b"cos\nsystem\n",
    b"\x8c\x02os\x8c\x06system\x93",
    b"R",
    b"b",
    b"\x82\x01",
    b"Q",
    b"(",
    b"t",
    b"}",
    b"u.",
    b"r\xff\xff\xff\x00",
]


@settings(max_examples=300, deadline=None)
@given(parts=st.lists(st.sampled_from(NAMES) | st.binary(max_size=8), max_size=12))
def test_any_bytes_are_refused_or_plain(parts: list[bytes]) -> None:
    try:
        value = loads(b"\x80\x04" + b"".join(parts) + b".")
    except RecordError:
        return
    assert type(value).__module__ == "builtins"


def test_a_huge_memo_index_allocates_nothing() -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert loads(b"\x80\x04K\x01r" + struct.pack("<I", 2**31) + b".") == 1
    assert loads(b"\x80\x04K\x01p2000000000\n.") == 1
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 50_000  # KiB


def laughs(depth: int) -> object:
    value: list[object] = [1]
    for _ in range(depth):
        value = [value, value]
    return {"x": value}


def selfish() -> object:
    value: dict[str, object] = {}
    value["x"] = [value]
    return value


@pytest.mark.parametrize("bomb", [laughs(60), selfish()], ids=["laughs", "selfish"])
def test_what_would_unfold_without_end_is_refused(tmp_path: Path, bomb: object) -> None:
    data = pickle.dumps(bomb)
    (tmp_path / "x.rec").write_bytes(
        MAGIC + struct.pack(">BII", KINDS.index("event"), len(data), zlib.crc32(data)) + data
    )
    with pytest.raises(RecordError, match=r"unfolds to more than its bytes can hold|too deep"):
        list(read_frames(tmp_path / "x.rec"))


def test_a_full_disk_is_survived() -> None:
    writer = RecordWriter(Path("/dev/full/x.rec"))
    assert writer.write("event", {"a": 1}) is False
    assert writer.lost == 1
    assert writer.problem is not None


def test_a_frame_that_does_not_fit_leaves_the_record_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "x.rec"
    writer = RecordWriter(path)
    writer.write("event", {"a": 1})
    real = os.write

    def half(handle: int, data: bytes) -> int:
        real(handle, data[: len(data) // 2])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "write", half)
    assert writer.write("event", {"b": 2}) is False
    monkeypatch.undo()
    assert writer.write("event", {"c": 3})
    writer.close()
    assert [frame.payload for frame in read_frames(path)] == [{"a": 1}, {"c": 3}]
