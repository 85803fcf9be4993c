from __future__ import annotations

import os
import pickle
import resource
import signal
import struct
import subprocess
import sys
import time
import zlib
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpcrl.formats.pickles import loads
from hpcrl.formats.record import (
    KINDS,
    MAGIC,
    MAX_FACTS,
    RecordError,
    RecordWriter,
    _facts_only,
    end_record,
    read_frames,
)

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


@pytest.mark.parametrize(
    ("payload", "reason"),
    [
        ({"x": Path("y")}, "contains "),
        ([1], "is not a mapping"),
        ({"facts": "{"}, "whose facts are not JSON"),
        ({"facts": "[" * 100_000}, "whose facts are not JSON"),
        ({"facts": "[]"}, "whose facts are not a mapping"),
        ({"facts": f'{{"x":{"9" * 5000}}}'}, "whose facts are not JSON"),
        ({"facts": " " * (MAX_FACTS + 1)}, f"the maximum is {MAX_FACTS}"),
        ({"x": ("nd", "<f8", (3,), b"12345678")}, "a damaged array"),
        ({"x": ("nd", "|O", (1,), b"12345678")}, "a tuple that is not an array"),
        ({"x": ("nd", "<f8", (-1, 0), b"")}, "a damaged array"),
    ],
)
def test_frames_that_are_refused(tmp_path: Path, payload: object, reason: str) -> None:
    (tmp_path / "x.rec").write_bytes(MAGIC + frame_of("event", pickle.dumps(payload, 3)))
    with pytest.raises(RecordError, match=reason):
        list(read_frames(tmp_path / "x.rec"))


def frame_of(kind: str, data: bytes) -> bytes:
    return struct.pack(">BII", KINDS.index(kind), len(data), zlib.crc32(data)) + data


def test_frames_of_one_layout_keep_their_own_numbers(tmp_path: Path) -> None:
    """They are not unpickled again, but for their arrays."""
    writer = RecordWriter(tmp_path / "x.rec")
    for number in range(4):
        table = np.full((3, 2), float(number))
        writer.write("samples", {"table": table, "cores": np.full((3, 5), number, np.float32), "n": number // 2})
    writer.write("samples", {"table": np.zeros((2, 3)), "cores": np.zeros((3, 5), np.float32), "n": 1})
    writer.close()
    frames = [frame.payload for frame in read_frames(tmp_path / "x.rec")]
    assert [frame["n"] for frame in frames] == [0, 0, 1, 1, 1]
    assert [frame["table"].ravel()[0] for frame in frames] == [0, 1, 2, 3, 0]
    assert [frame["cores"].shape + frame["table"].shape for frame in frames] == [(3, 5, 3, 2)] * 4 + [(3, 5, 2, 3)]


@pytest.mark.parametrize("torn", [0, 1, 12, 40])
def test_the_record_of_a_killed_rank_is_ended_for_it(tmp_path: Path, torn: int) -> None:
    """After its last whole frame: the one that it was writing is cut off."""
    path = tmp_path / "x.rec"
    writer = RecordWriter(path)
    writer.write("header", {"started": time.time() - 60})
    writer.write("progress", {"table": np.zeros((1, 3))})
    whole = path.stat().st_size
    writer.write("progress", {"table": np.ones((1, 3))})
    os.truncate(path, path.stat().st_size - torn)
    assert end_record(path, {"outcome": "failed", "reason": "killed by SIGKILL"})
    kinds = [frame.kind for frame in read_frames(path)]
    assert kinds == ["header", "progress", *(["progress"] if not torn else []), "footer"]
    assert path.stat().st_size > whole
    *_, footer = (frame.payload for frame in read_frames(path))
    assert footer["reason"] == "killed by SIGKILL"
    assert 59 < footer["wall_time"] < 600


def test_a_record_that_has_its_footer_or_no_header_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "x.rec"
    assert not end_record(path, {"outcome": "failed"})
    writer = RecordWriter(path)
    writer.write("progress", {"table": np.zeros((1, 3))})
    assert not end_record(path, {"outcome": "failed"})
    writer.write("header", {"started": 1.0})
    writer.write("footer", {"outcome": "completed"})
    before = path.read_bytes()
    assert not end_record(path, {"outcome": "failed"})
    assert path.read_bytes() == before


def test_what_has_no_place_in_a_record(tmp_path: Path) -> None:
    for value in (Path("x"), b"x", np.array(["x"]), object()):
        with pytest.raises(TypeError, match="cannot be stored in a record"):
            RecordWriter(tmp_path / "x.rec").write("event", {"x": value})


def test_killed_at_any_moment_it_reads_up_to_the_last_whole_frame(tmp_path: Path) -> None:
    """200 writers are killed with SIGKILL; what each had said it had written is there, and nothing is damaged."""
    generator = np.random.default_rng(0)
    for number in range(200):
        path = tmp_path / f"{number}.rec"
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            writer = RecordWriter(path)
            while True:
                writer.write("samples", {"table": np.ones((50, 25)), "n": 1})
                os.write(writing, b".")
        os.close(writing)
        os.read(reading, 1)  # it is under way
        time.sleep(generator.uniform(0, 0.005))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        said = 1
        while block := os.read(reading, 65536):
            said += len(block)
        os.close(reading)
        frames = list(read_frames(path))
        assert said <= len(frames) <= said + 1
        assert all(frame.payload["table"].sum() == 1250 for frame in frames)


def test_a_full_disk_is_survived() -> None:
    writer = RecordWriter(Path("/dev/full/x.rec"))
    assert writer.write("event", {"a": 1}) is False
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


def limited(tmp_path: Path, how: str) -> tuple[int, list[str]]:
    """Write frames in a small file system of their own, which `how` spoils on the way; return frames read, problems."""
    program = f"""
import os, shutil, subprocess, sys
from pathlib import Path
from hpcrl.formats.record import RecordWriter, read_frames
place = Path({str(tmp_path)!r})
subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "none", str(place)], check=True)
writer = RecordWriter(place / "records" / "x.rec")
problems = []
for number in range(6):
    if number == 3:
        {how}
    writer.write("event", {{"n": number, "x": "y" * 10}})
    problems.append(str(writer.problem))
    if number == 4:
        subprocess.run(["mount", "-o", "remount,rw", str(place)])
        (place / "big").unlink(missing_ok=True)
writer.close()
print(len(list(read_frames(place / "records" / "x.rec"))) if (place / "records").exists() else -1)
print("\\n".join(problems))
"""
    done = subprocess.run(
        ["unshare", "--mount", sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=60
    )
    if "Operation not permitted" in done.stderr or "unshare failed" in done.stderr:
        pytest.skip("this user may not mount a file system")
    assert done.returncode == 0, done.stderr
    count, *problems = done.stdout.split("\n")
    return int(count), problems


def test_a_disk_that_fills_up(tmp_path: Path) -> None:
    fill = "(place / 'big').touch(); os.posix_fallocate(os.open(place / 'big', os.O_WRONLY), 0, 56 * 1024)"
    fill += "; writer.write('event', {'x': 'y' * 50_000})"
    count, problems = limited(tmp_path, fill)
    assert problems[2] == "None"
    assert "No space left on device" in problems[3]
    assert count >= 4  # those before, and the one after there was room again


def test_a_disk_that_becomes_read_only(tmp_path: Path) -> None:
    """A file open for writing keeps a file system writable, so the record is one that was not begun."""
    how = "writer.close(); subprocess.run(['mount', '-o', 'remount,ro', str(place)], check=True)"
    how += "; writer = RecordWriter(place / 'records' / 'y.rec')"
    count, problems = limited(tmp_path, how)
    assert "Read-only file system" in problems[3]
    assert count == 3


def test_a_directory_that_vanishes(tmp_path: Path) -> None:
    count, problems = limited(tmp_path, "shutil.rmtree(place / 'records')")
    assert problems[2] == "None"
    assert problems[3].endswith("x.rec: has been deleted")
    assert count == -1


def test_a_quota(tmp_path: Path) -> None:
    """The limit on the size of a file, which is to a writer what a quota is."""
    path = tmp_path / "x.rec"
    child = os.fork()
    if child == 0:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
        writer = RecordWriter(path)
        taken = [writer.write("event", {"x": "y" * 200}) for _ in range(9)]
        os._exit(
            taken.count(True) if taken == sorted(taken, reverse=True) and "too large" in str(writer.problem) else 99
        )
    taken = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert 1 < taken < 9
    assert len(list(read_frames(path))) == taken


@given(text=st.text(), noise=st.binary(max_size=3))
def test_a_frame_of_facts_alone_means_what_its_pickle_means(text: str, noise: bytes) -> None:
    """The short cut takes nothing that the interpreter would read otherwise."""
    data = pickle.dumps({"facts": text}, protocol=3)
    assert _facts_only(data) == text == loads(data)["facts"]
    for other in (data + noise, data[: len(data) // 2] + noise + data[len(data) // 2 :], data[:-1] + noise + b"."):
        if (found := _facts_only(other)) is not None:
            assert loads(other) == {"facts": found}
    assert _facts_only(pickle.dumps({"facts": text, "more": 1}, protocol=3)) is None
