"""Pickles that nobody can trust: plain values come back as they were, everything else is refused, cheaply."""

from __future__ import annotations

import builtins
import copyreg
import importlib
import io
import os
import pickle
import resource
import struct
import subprocess
import sys
import time
import zlib
from collections import OrderedDict, deque
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpcrl.formats.pickles import MAX_INSTRUCTIONS, PickleError, loads

SCALARS = (
    st.none() | st.booleans() | st.integers(-(2**100), 2**100) | st.floats(allow_nan=False) | st.text() | st.binary()
)
VALUES = st.recursive(
    SCALARS,
    lambda each: (
        st.lists(each, max_size=5)
        | st.dictionaries(st.text(max_size=5), each, max_size=5)
        | st.lists(each, max_size=5).map(tuple)
    ),
)


@settings(deadline=None)
@given(value=VALUES, protocol=st.sampled_from([3, 4]))
def test_plain_values_come_back(value: object, protocol: int) -> None:
    out = io.BytesIO()
    pickler = pickle.Pickler(out, protocol)
    pickler.fast = True  # without references to what was there before
    pickler.dump(value)
    found = loads(out.getvalue())
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize("protocol", [3, 4])
def test_short_texts_are_referred_to_again(protocol: int) -> None:
    word = "".join(["ti", "me"])
    value = {"first": [word] * 3, word: {word: word}, "many": [str(number) for number in range(300)] * 2}
    assert loads(pickle.dumps(value, protocol)) == value


def test_places_of_bytes() -> None:
    places: list[tuple[int, int]] = []
    data = pickle.dumps({"a": b"xyz", "b": [b"0" * 1000]}, 4)
    loads(data, places)
    assert [data[start : start + size] for start, size in places] == [b"xyz", b"0" * 1000]


class Reduced:
    def __init__(self, call: Any, *arguments: Any) -> None:
        self.call, self.arguments = call, arguments

    def __reduce__(self) -> Any:
        return (self.call, self.arguments)


class Stateful:
    """Built by NEWOBJ and BUILD."""

    def __init__(self) -> None:
        self.x = 1


TOUCH = "touch pwned"
BIG = 2**40


def proto(body: bytes) -> bytes:
    return b"\x80\x04" + body


def chain(depth: int) -> Reduced:
    value = Reduced(os.system, TOUCH)
    for _ in range(depth):
        value = Reduced(getattr, value, "x")
    return value


def laughs(depth: int) -> object:
    value: list[object] = ["ha"]
    for _ in range(depth):
        value = [value, value]
    return {"x": value}


def selfish() -> object:
    value: dict[str, object] = {}
    value["x"] = [value]
    return value


HOSTILE: dict[str, bytes] = {
    # calls, by every instruction that names or calls
    "os.system": pickle.dumps({"x": Reduced(os.system, TOUCH)}),
    "os.system, protocol 0": pickle.dumps(Reduced(os.system, TOUCH), 0),
    "os.system, protocol 1": pickle.dumps(Reduced(os.system, TOUCH), 1),
    "posix.system": proto(b"\x8c\x05posix\x8c\x06system\x93\x8c\x0btouch pwned\x85R."),
    "GLOBAL": b"cos\nsystem\n(S'touch pwned'\ntR.",
    "INST": b"(S'touch pwned'\nios\nsystem\n.",
    "OBJ": b"(cos\nsystem\nS'touch pwned'\no.",
    "STACK_GLOBAL alone": proto(b"\x8c\x02os\x8c\x06system\x93."),
    "os.popen": pickle.dumps(Reduced(os.popen, TOUCH)),
    "os.execv": pickle.dumps(Reduced(os.execv, "/bin/true", ["true"])),
    "os.posix_spawn": pickle.dumps(Reduced(os.posix_spawn, "/bin/touch", ["touch", "pwned"], {})),
    "subprocess.run": pickle.dumps(Reduced(subprocess.run, ["touch", "pwned"])),
    "subprocess.Popen": pickle.dumps(Reduced(subprocess.Popen, ["touch", "pwned"])),
    "eval": pickle.dumps(Reduced(builtins.eval, "open('pwned', 'w')")),
    "exec": pickle.dumps(Reduced(builtins.exec, "open('pwned', 'w')")),
    "compile": pickle.dumps(Reduced(builtins.compile, "1", "x", "eval")),
    "__import__": pickle.dumps(Reduced(builtins.__import__, "antigravity")),
    "open": pickle.dumps(Reduced(builtins.open, "pwned", "w")),
    "getattr": pickle.dumps(Reduced(getattr, "", "upper")),
    "importlib": pickle.dumps(Reduced(importlib.import_module, "antigravity")),
    "a chain of reductions": pickle.dumps(chain(50)),
    "copyreg": pickle.dumps(Reduced(copyreg.add_extension, "os", "system", 7)),
    "EXT1": proto(b"\x82\x01."),
    "EXT2": proto(b"\x83\x01\x00."),
    "EXT4": proto(b"\x84\x01\x00\x00\x00."),
    "PERSID": b"Pos.system\n.",
    "BINPERSID": proto(b"\x8c\x01xQ."),
    "NEWOBJ and BUILD": pickle.dumps(Stateful()),
    "NEWOBJ_EX": proto(b"\x8c\x02os\x8c\x06system\x93)}\x92."),
    "BUILD of a dictionary": proto(b"}}\x8c\x09__class__K\x01sb."),
    # classes that look harmless
    "a path": pickle.dumps(Path("x")),
    "an ordered dictionary": pickle.dumps(OrderedDict(a=1)),
    "a deque": pickle.dumps(deque([1])),
    "a set": pickle.dumps({1, 2}),
    "a frozen set": pickle.dumps(frozenset({1})),
    "a complex number": pickle.dumps(1j),
    "a function": pickle.dumps(len),
    "an exception": pickle.dumps(ValueError("x")),
    "a NumPy array": pickle.dumps(np.arange(3)),
    "a NumPy scalar": pickle.dumps(np.float64(1)),
    "a NumPy array of objects": pickle.dumps(np.array([Reduced(os.system, TOUCH)], object)),
    "a NumPy array out of band": pickle.dumps(np.arange(3), 5, buffer_callback=lambda each: None),
    # memory and time
    "a text longer than the file": proto(b"\x8d" + struct.pack("<Q", BIG) + b"x."),
    "short unicode beyond the end": proto(b"\x8c\xffx."),
    "bytes longer than the file": proto(b"\x8e" + struct.pack("<Q", 2**63 - 1) + b"x."),
    "a byte array of a terabyte": proto(b"\x96" + struct.pack("<Q", BIG) + b"x."),
    "a frame of a terabyte and no more": proto(b"\x95" + struct.pack("<Q", BIG)),
    "a number of 2 GB": proto(b"\x8b" + struct.pack("<i", 2**31 - 1) + b"\x01."),
    "a number in words": b"I" + b"9" * 100_000 + b"\n.",
    "a long number in words": b"L" + b"9" * 100_000 + b"L\n.",
    "marks": proto(b"(" * 10**6 + b"."),
    "empty lists": proto(b"]" * 10**7 + b"."),
    "depth": proto(b"]" * 10**5 + b"a" * (10**5 - 1)) * 5,
    "popping": proto(b"N0" * 10**6 + b"N."),
    "duplicates": proto(b"]" + b"2" * 10**6 + b"."),
    "laughs": pickle.dumps(laughs(60)),
    "selfish": pickle.dumps(selfish()),
    "a text of a megabyte, a thousand times": pickle.dumps([value := "x" * 10**6, *[value] * 1000]),
    "bytes, a thousand times": pickle.dumps([value2 := b"x" * 10**6, *[value2] * 1000]),
    "a compressed bomb": pickle.dumps(Reduced(zlib.decompress, zlib.compress(bytes(10**7)))),
    "a list times a billion": pickle.dumps(Reduced(list.__mul__, [0], 10**9)),
    "a range": pickle.dumps(range(10**12)),
    # nonsense
    "nothing": b"",
    "no end": proto(b"}"),
    "an end and more": proto(b"N.N."),
    "two values": proto(b"NN."),
    "no value": proto(b"."),
    "noise": b"\xff\xfe\x00",
    "keys that are numbers": pickle.dumps({1: 2}),
    "an item without a dictionary": proto(b"\x8c\x01xK\x01s."),
    "an append to a dictionary": proto(b"}K\x01a."),
    "what was never remembered": proto(b"h\x05."),
    "a tuple of too few": proto(b"K\x01\x87."),
    "no mark": proto(b"K\x01t."),
    "text that is no text": proto(b"\x8c\x02\xff\xfe."),
    "half a float": proto(b"G\x00\x00."),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_pickles_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.chdir(tmp_path)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    start = time.process_time()
    with pytest.raises(PickleError):
        loads(HOSTILE[name])
    assert time.process_time() - start < 20  # a guard against a blow-up, not a measure
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100_000  # KiB
    assert not (tmp_path / "pwned").exists()
    assert "antigravity" not in sys.modules


def test_huge_memo_indices_allocate_nothing() -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert loads(proto(b"K\x01r" + struct.pack("<I", 2**32 - 1) + b".")) == 1
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 10_000  # KiB


def test_the_most_instructions() -> None:
    inside = proto(b"]" + b"Na" * (MAX_INSTRUCTIONS // 2 - 2) + b".")
    assert len(loads(inside)) == MAX_INSTRUCTIONS // 2 - 2
    with pytest.raises(PickleError, match=f"more than {MAX_INSTRUCTIONS} instructions"):
        loads(proto(b"]" + b"Na" * MAX_INSTRUCTIONS + b"."))


# Instructions and their beginnings, so that random programs get somewhere.
PARTS = [
    b"}", b"]", b")", b"(", b"t", b"u", b"s", b"e", b"a", b"N", b"\x88", b"K\x01", b"\x8c\x01x", b"C\x01x", b"\x94",
    b"h\x00", b"q\x00", b"\x85", b"\x86", b"\x87", b"J\x01\x00\x00\x00", b"\x8a\x01\x05", b"r\xff\xff\xff\xff",
    b"cos\nsystem\n", b"\x8c\x02os\x8c\x06system\x93", b"R", b"b", b"\x81", b"\x82\x01", b"Q", b"0", b"2", b"1", b"d", b"l",
]  # fmt: skip


@settings(max_examples=1000, deadline=None)
@given(parts=st.lists(st.sampled_from(PARTS) | st.binary(max_size=6), max_size=20))
def test_any_bytes_are_refused_or_plain(parts: list[bytes]) -> None:
    data = proto(b"".join(parts) + b".")
    try:
        value = loads(data)
    except PickleError:
        return
    waiting = [value]
    while waiting:
        each = waiting.pop()
        assert type(each) in (dict, list, tuple, str, bytes, int, float, bool, type(None))
        if isinstance(each, dict):
            waiting.extend(each.values())
        elif isinstance(each, list | tuple):
            waiting.extend(each)
    # What the standard library makes of it is the same; its unpickler in C allocates 32 GB for a memo index of 2**32 - 1.
    assert repr(pickle._Unpickler(io.BytesIO(data)).load()) == repr(value)
