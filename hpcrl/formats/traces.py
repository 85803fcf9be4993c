"""Traces of the frameworks' profilers: events with a start and an end on each thread, and as JSON for Perfetto and Chrome.

JAX and TensorFlow write an ``XSpace`` in the wire format of Protocol Buffers. It is read here, because no library of a login
node reads it, and by a reader that trusts nothing: a file may come from a stranger's plan.
Sources: XLA, xla/tsl/profiler/protobuf/xplane.proto; Trace Event Format (Chrome).
"""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from hpcrl.formats.profiles import Frame, plain_name

MOST_EVENTS = 5_000_000
TRACE, XSPACE = ".json.gz", ".xplane.pb"  # suffixes: gzipped JSON, and the file of JAX and TensorFlow
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5  # wire types
_PLANES = 1  # fields of XSpace, XPlane, XLine, XEvent, and XEventMetadata
_NAME, _LINES, _EVENT_METADATA = 2, 3, 4
_LINE_NAME, _TIMESTAMP, _EVENTS, _DISPLAY_NAME = 2, 3, 4, 11
_METADATA_ID, _OFFSET, _DURATION = 1, 2, 3
_KEY, _VALUE = 1, 2  # of an entry of a map
_METADATA_NAME = 2
_PICO, _NANO = 1e-12, 1e-9
_NUMBER = re.compile(r"/-?\d+$")


class TraceError(Exception):
    """A file that is no such trace, and why."""


@dataclass(frozen=True)
class Event:
    """Something that a thread did, in seconds since the trace's own zero."""

    name: str
    start: float
    duration: float


@dataclass(frozen=True)
class Thread:
    """The events of a thread of a process or device (`plane`)."""

    plane: str
    name: str
    events: list[Event] = field(default_factory=list)


def read_xspace(data: bytes) -> list[Thread]:
    """Read the trace of JAX or TensorFlow; threads without events are left out.

    Raises:
        TraceError: it is something else, or too large.
    """
    threads: list[Thread] = []
    number = 0
    try:
        for tag, plane in _fields(memoryview(data)):
            if tag != _PLANES or isinstance(plane, int):
                continue
            parts = [(inner, value) for inner, value in _fields(plane) if not isinstance(value, int)]
            name = next((_text(value) for inner, value in parts if inner == _NAME), "")
            names = dict(_metadata(value) for inner, value in parts if inner == _EVENT_METADATA)
            for inner, value in parts:
                if inner == _LINES and (thread := _thread(name, value, names)).events:
                    threads.append(thread)
                    number += len(thread.events)
                    if number > MOST_EVENTS:
                        raise TraceError(f"has more than {MOST_EVENTS:,} events")
    except (IndexError, ValueError, UnicodeDecodeError, OverflowError) as error:
        raise TraceError(f"is not a trace of JAX or TensorFlow ({error})") from None
    return threads


def chrome_trace(threads: Sequence[Thread]) -> bytes:
    """Return the trace as gzipped JSON, which ui.perfetto.dev and chrome://tracing open."""
    zero = min((event.start for thread in threads for event in thread.events), default=0.0)
    planes = list(dict.fromkeys(thread.plane for thread in threads))
    events: list[dict[str, object]] = [
        {"ph": "M", "name": "process_name", "pid": place, "args": {"name": plane}} for place, plane in enumerate(planes)
    ]
    for number, thread in enumerate(threads):
        here = {"pid": planes.index(thread.plane), "tid": number}
        events.append({"ph": "M", "name": "thread_name", **here, "args": {"name": thread.name}})
        events += [
            {
                "ph": "X",
                "name": event.name,
                "ts": round(1e6 * (event.start - zero), 3),
                "dur": round(1e6 * event.duration, 3),
                **here,
            }
            for event in thread.events
        ]
    text = json.dumps({"displayTimeUnit": "ms", "traceEvents": events}, separators=(",", ":"))
    return gzip.compress(text.encode(errors="replace"), mtime=0)


def tree_of(threads: Sequence[Thread]) -> Frame:
    """Return the events as a tree: a thread, its outermost events, and the events within each."""
    root = Frame("all")
    for thread in threads:
        name = plain_name(f"thread {_NUMBER.sub('', thread.name)}")  # threads of a pool are one
        top = root.callees.setdefault(name, Frame(name))
        open_frames: list[tuple[float, Frame]] = []  # the ends of the events around the present one
        for span in sorted(thread.events, key=lambda event: (event.start, -event.duration)):
            while open_frames and open_frames[-1][0] <= span.start:
                open_frames.pop()
            above = open_frames[-1][1] if open_frames else top
            end = span.start + span.duration
            if open_frames and end > open_frames[-1][0]:  # clocks round: it ends with the event around it
                end = open_frames[-1][0]
            name = plain_name(span.name)
            frame = above.callees.setdefault(name, Frame(name))
            frame.value += end - span.start
            open_frames.append((end, frame))
        top.value = sum(frame.value for frame in top.callees.values())
    root.value = sum(frame.value for frame in root.callees.values())
    return root


def _thread(plane: str, line: memoryview, names: dict[int, str]) -> Thread:
    name, start = "", 0
    spans: list[tuple[int, int, int]] = []
    for tag, value in _fields(line):
        if tag == _TIMESTAMP and isinstance(value, int):
            start = value
        elif tag in (_LINE_NAME, _DISPLAY_NAME) and not isinstance(value, int):
            name = _text(value) or name
        elif tag == _EVENTS and not isinstance(value, int):
            known = {inner: number for inner, number in _fields(value) if isinstance(number, int)}
            spans.append((known.get(_METADATA_ID, 0), known.get(_OFFSET, 0), known.get(_DURATION, 0)))
    events = [
        Event(names.get(key, str(key)), start * _NANO + offset * _PICO, duration * _PICO)
        for key, offset, duration in spans
    ]
    return Thread(plane, name, events)


def _metadata(entry: memoryview) -> tuple[int, str]:
    key, name = 0, ""
    for tag, value in _fields(entry):
        if tag == _KEY and isinstance(value, int):
            key = value
        elif tag == _VALUE and not isinstance(value, int):
            name = next(
                (
                    _text(inner)
                    for which, inner in _fields(value)
                    if which == _METADATA_NAME and not isinstance(inner, int)
                ),
                "",
            )
    return key, name


def _text(data: memoryview) -> str:
    return bytes(data).decode(errors="replace")


def _fields(data: memoryview) -> Iterator[tuple[int, int | memoryview]]:
    """Give number and value of each field of a message: an integer, or bytes. Fields of fixed width are left out.

    Raises:
        ValueError, IndexError: it is not a message.
    """
    at, size = 0, len(data)
    while at < size:
        key, at = _varint(data, at)
        kind = key & 7
        if kind == _VARINT:
            number, at = _varint(data, at)
            yield key >> 3, number
        elif kind == _BYTES:
            length, at = _varint(data, at)
            if length > size - at:
                raise ValueError(f"a field of {length} bytes in a message of {size}")
            yield key >> 3, data[at : at + length]
            at += length
        elif kind in (_FIXED64, _FIXED32):
            at += 8 if kind == _FIXED64 else 4
        else:
            raise ValueError(f"a field of type {kind}")


def _varint(data: memoryview, at: int) -> tuple[int, int]:
    number = shift = 0
    while True:
        byte = data[at]
        at += 1
        number |= (byte & 127) << shift
        if byte < 128:
            return number, at
        shift += 7
        if shift > 63:
            raise ValueError("a number of more than 64 bits")
