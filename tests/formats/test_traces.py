"""Traces of frameworks: the file of JAX and TensorFlow, which may be a stranger's, and JSON for Perfetto."""

from __future__ import annotations

import contextlib
import gzip
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcrl.formats.profiles import functions_of
from hpcrl.formats.traces import Event, Thread, TraceError, chrome_trace, read_xspace, tree_of


def number(field: int, value: int) -> bytes:
    return varint(field << 3) + varint(value)


def text(field: int, value: bytes) -> bytes:
    return varint(field << 3 | 2) + varint(len(value)) + value


def varint(value: int) -> bytes:
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes([*out, value])


def event(key: int, offset: int, duration: int) -> bytes:
    return text(4, number(1, key) + number(2, offset) + number(3, duration))


def xspace() -> bytes:
    """A plane with two threads: `step` of 4 us, with `matmul` of 1 us inside, and one event of a pool."""
    names = b"".join(
        text(4, number(1, key) + text(2, number(1, key) + text(2, name)))
        for key, name in ((1, b"step"), (2, b"matmul"), (3, b"gemm"))
    )
    main = text(3, text(2, b"python") + number(3, 5_000) + event(1, 0, 4_000_000) + event(2, 1_000_000, 1_000_000))
    pool = text(3, text(2, b"pool/77") + number(3, 6_000) + event(3, 0, 2_000_000))
    # A field of fixed width, as statistics have, is passed over.
    return text(1, text(2, b"/host:CPU") + main + pool + names + varint(7 << 3 | 1) + b"12345678")


def test_an_xspace_is_read() -> None:
    main, pool = read_xspace(xspace())
    assert (main.plane, main.name, pool.name) == ("/host:CPU", "python", "pool/77")
    assert [each.name for each in main.events] == ["step", "matmul"]
    assert main.events[1].start == pytest.approx(6e-6)
    assert main.events[0].duration == pytest.approx(4e-6)


def test_events_within_others_are_their_callees_and_threads_of_a_pool_are_one() -> None:
    other = Thread("p", "pool/78", [Event("gemm", 0.0, 1e-6)])
    root = tree_of([*read_xspace(xspace()), other])
    assert set(root.callees) == {"thread python", "thread pool"}
    step = root.callees["thread python"].callees["step"]
    assert (step.value, step.own) == (pytest.approx(4e-6), pytest.approx(3e-6))
    assert root.callees["thread pool"].value == pytest.approx(3e-6)
    assert root.value == pytest.approx(7e-6)
    (found,) = [each for each in functions_of(root.callees["thread python"]) if each.name == "matmul"]
    assert found.own == pytest.approx(1e-6)


def test_an_event_that_ends_after_the_one_around_it_is_cut() -> None:
    root = tree_of([Thread("p", "t", [Event("a", 0.0, 2.0), Event("b", 1.0, 1.5), Event("c", 3.0, 1.0)])])
    top = root.callees["thread t"]
    assert (top.callees["a"].callees["b"].value, top.callees["c"].value, top.value) == (1.0, 1.0, 3.0)


def test_perfetto_gets_microseconds_from_the_first_event_on() -> None:
    found = json.loads(gzip.decompress(chrome_trace(read_xspace(xspace()))))["traceEvents"]
    shown = [(each["name"], each["ts"], each["dur"]) for each in found if each["ph"] == "X"]
    assert shown == [("step", 0.0, 4.0), ("matmul", 1.0, 1.0), ("gemm", 1.0, 2.0)]
    named = {each["args"]["name"] for each in found if each["ph"] == "M"}
    assert named == {"/host:CPU", "python", "pool/77"}


@pytest.mark.parametrize("data", [xspace()[:-3], b"\x0b", b"\xff" * 20, b"\x0a\xff\xff\xff\xff\x0f", b"<html>"])
def test_what_is_no_trace_is_said(data: bytes) -> None:
    with pytest.raises(TraceError, match="is not a trace of JAX or TensorFlow"):
        read_xspace(data)


@given(st.binary(max_size=200))
def test_no_file_of_a_stranger_does_more_than_fail(data: bytes) -> None:
    with contextlib.suppress(TraceError):
        chrome_trace(read_xspace(data))


def test_too_many_events_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hpcrl.formats.traces.MOST_EVENTS", 2)
    with pytest.raises(TraceError, match="has more than 2 events"):
        read_xspace(xspace())
