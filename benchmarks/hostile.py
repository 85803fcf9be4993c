"""Hostile records beside one good one: what hpcrl collect does with them, and the memory that it takes.

    python -m benchmarks.hostile [RECORDS]

Each hostile record is made of the good one and has a name, a header and checksums that are right, so that it reaches
the check that is meant for it: frames swapped, cut, of other types, nested, repeated, huge; and FIFOs, links and
directories in the place of records. Four are large. The memory is that of the largest process, and its limit is twice the largest file and 100 MiB.
"""

from __future__ import annotations

import json
import os
import pickle
import random
import struct
import subprocess
import sys
import tempfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.collecting import write_records

Frames = list[tuple[str, bytes]]
# A child's peak memory begins with that of the process that started it: so a small one starts it.
_MEASURE = """
import json, resource, subprocess, sys
done = subprocess.run(sys.argv[1:], stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
print(json.dumps({"code": done.returncode, "lines": done.stdout.decode(errors="replace").splitlines(), "peak": peak}))
"""
_ODD: tuple[Any, ...] = (
    None, True, -1, 0, 2**61, 2**80, 1e308, float("nan"), float("inf"), "", "../../x", "\x1b]0;x\x07", "é" * 3, "x" * 5000,
    [], {}, [[[]]], {"a": {"b": []}}, ["x", 1, None], {"": None},
)  # fmt: skip


def facts_frame(kind: str, facts: Any) -> tuple[str, bytes]:
    return kind, pickle.dumps({"facts": facts if isinstance(facts, str) else json.dumps(facts)}, protocol=3)


def record_of(frames: Frames) -> bytes:
    from hpcrl.formats.record import KINDS, MAGIC

    heads = (struct.pack(">BII", KINDS.index(kind), len(data), zlib.crc32(data)) for kind, data in frames)
    return MAGIC + b"".join(head + data for head, (_, data) in zip(heads, frames, strict=True))


def _places(value: Any, found: list[tuple[Any, Any]]) -> None:
    """Collect every place in nested facts that holds a value."""
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, each in inside:
        found.append((value, key))
        _places(each, found)


def retyped(frames: Frames, chance: random.Random) -> Frames:
    """Put values of other types into the facts of a frame."""
    choice = chance.choice([place for place, (_, data) in enumerate(frames) if b"facts" in data[:20]])
    kind, data = frames[choice]
    facts = json.loads(pickle.loads(data)["facts"])
    places: list[tuple[Any, Any]] = []
    _places(facts, places)
    for _ in range(chance.randint(1, 3)):
        where, key = chance.choice([each for each in places if each[1] not in ("plan", "cell", "attempt", "node")])
        where[key] = chance.choice(_ODD)
    return [*frames[:choice], facts_frame(kind, facts), *frames[choice + 1 :]]


def swapped(frames: Frames, chance: random.Random) -> Frames:
    first, second = chance.sample(range(len(frames)), 2)
    found = list(frames)
    if chance.random() < 0.5:  # the frames, or what they say they are
        found[first], found[second] = found[second], found[first]
    else:
        found[first], found[second] = (frames[first][0], frames[second][1]), (frames[second][0], frames[first][1])
    return found


def nested(frames: Frames, chance: random.Random) -> Frames:
    depth = chance.choice((50, 400, 900, 2000, 50_000))
    deep = "[" * depth + "]" * depth
    kind = chance.choice(("event", "values", "footer", "phases", "calibration"))
    name = {"event": "text", "values": "entries", "footer": "reason", "phases": "seconds", "calibration": "matrix"}[
        kind
    ]
    if chance.random() < 0.5:
        return [*frames, facts_frame(kind, f'{{"{name}":{deep}}}')]
    return [*frames, (kind, b"\x80\x04}\x8c\x04text" + b"]" * depth + b"a" * (depth - 1) + b"s.")]


def noise(frames: Frames, chance: random.Random) -> Frames:
    place = chance.randrange(1, len(frames))
    data = bytearray(frames[place][1])
    for _ in range(chance.randint(1, 8)):
        data[chance.randrange(len(data))] = chance.randrange(256)
    return [*frames[:place], (frames[place][0], bytes(data)), *frames[place + 1 :]]


def disordered(frames: Frames, chance: random.Random) -> Frames:
    """Give a frame of samples a key twice, so that its arrays stand in another order than their bytes."""
    place = next(place for place, (kind, _) in enumerate(frames) if kind == "samples")
    arrays = pickle.loads(frames[place][1])
    names = list(arrays)

    def item(name: str, value: Any) -> bytes:
        return pickle.dumps(name, 3)[2:-1] + pickle.dumps(value, 3)[2:-1]

    body = item(names[0], None) + b"".join(item(name, arrays[name]) for name in reversed(names))
    frame = "samples", b"\x80\x03}(" + body + b"u."
    return [*frames[:place], frame, frame, *frames[place + 1 :]]


def plain(frames: Frames, chance: random.Random) -> Frames:
    """Put values into a header's pickle that JSON does not know."""
    header = json.loads(pickle.loads(frames[0][1])["facts"])
    header[chance.choice(("hardware", "software", "code", "variables", "calibration"))] = chance.choice(
        ({"cpu": b"x"}, {"x": {"y": (1, b"z")}}, {"x": 2**70}, {"x": b"\xff" * 1000})
    )
    return [("header", pickle.dumps(header, 3)), *frames[1:]]


def unfolding(frames: Frames, chance: random.Random) -> Frames:
    """Refer to one short text many times, where every reference is two bytes."""
    header = json.loads(pickle.loads(frames[0][1])["facts"])
    word = "\x01" * 250
    header["software"] = dict.fromkeys(map(str, range(chance.choice((10, 1000, 40_000)))), word)
    return [("header", pickle.dumps(header, 4)), *frames[1:]]


MUTATIONS: tuple[Callable[[Frames, random.Random], Frames], ...] = (
    retyped, retyped, retyped, swapped, nested, noise, noise, disordered, plain, unfolding,
)  # fmt: skip


def large(frames: Frames) -> list[Frames]:
    """Return the large ones: lists of lists, text with one emoji, short texts a hundred thousand times, samples."""
    lists = facts_frame("event", '{"text":"x","more":[' + "[]," * 699_000 + "[]]}")
    few = facts_frame("event", '{"text":"x","more":[' + "[]," * 90_000 + "[]]}")
    text = "event", pickle.dumps({"text": "\N{GRINNING FACE}" + "x" * 60_000_000}, 4)
    header = json.loads(pickle.loads(frames[0][1])["facts"])
    header["software"] = dict.fromkeys(map(str, range(66_000)), "x" * 250)
    samples = [frame for frame in frames if frame[0] == "samples"]
    return [
        [*frames, *[lists] * 25],
        [*frames, *[few] * 190],
        [*frames, text],
        [("header", pickle.dumps(header, 4)), *frames[1:]],
        [*frames[:-1], *samples * 3_000, frames[-1]],
    ]


def write_hostile(plan: Path, count: int, seed: int = 0) -> None:
    """Write so many hostile records beside the only record of a plan."""
    from hpcrl.formats.record import _payloads, KINDS, record_name  # noqa: I001

    chance = random.Random(seed)
    (good,) = (plan / "records").iterdir()
    with good.open("rb", buffering=0) as file:
        frames = [(KINDS[number], data) for number, _, data, _ in _payloads(file, [True] * len(KINDS))]
    header = json.loads(pickle.loads(frames[0][1])["facts"])
    cell, node = header["cell"], header["node"]
    big = large(frames)
    for number in range(count):
        attempt = f"local-{number + 2}"
        path = plan / "records" / record_name(cell, attempt, node, 0)
        odd = chance.random()
        if number >= len(big) and odd < 0.04:
            _no_file(path, chance)
            continue
        own = big[number] if number < len(big) else chance.choice(MUTATIONS)(frames, chance)
        own = [(kind, data.replace(b'"local-1"', json.dumps(attempt).encode())) for kind, data in own]
        if own[0][0] == "header":  # its text is longer now
            own[0] = _renamed(own[0][1], attempt)
        content = record_of(own)
        path.write_bytes(content[: chance.randrange(len(content))] if odd > 0.95 else content)


def _renamed(data: bytes, attempt: str) -> tuple[str, bytes]:
    data = data.replace(json.dumps(attempt).encode(), b'"local-1"')
    payload = pickle.loads(data)
    if "facts" in payload:
        return facts_frame("header", {**json.loads(payload["facts"]), "attempt": attempt})
    return "header", pickle.dumps(payload | {"attempt": attempt}, 4)


def _no_file(path: Path, chance: random.Random) -> None:
    match chance.randrange(5):
        case 0:
            os.mkfifo(path)
        case 1:
            path.symlink_to("/nonexistent")
        case 2:
            path.symlink_to(path.name)
        case 3:
            path.mkdir()
        case _:
            path.symlink_to("/dev/zero")


def run(count: int, directory: Path) -> dict[str, Any]:
    """Collect one good record and so many hostile ones; return what was said and what it took."""
    plan = write_records(directory, 1, seeds=1)
    write_hostile(plan, count)
    sizes = [path.stat(follow_symlinks=False).st_size for path in (plan / "records").iterdir()]
    command = [sys.executable, "-m", "hpcrl", "collect", str(plan), "-o", str(directory / "dataset")]
    found = subprocess.run(
        [sys.executable, "-S", "-c", _MEASURE, *command], check=True, stdout=subprocess.PIPE, text=True
    )
    measured: dict[str, Any] = json.loads(found.stdout)
    good = has_good_one(directory / "dataset")
    return {
        "records": count + 1,
        "exit code": measured["code"],
        "the good one merged": good,
        "put aside": len(json.loads((directory / "dataset/quarantine.json").read_text()))
        if measured["code"] == 0
        else 0,
        "lines of output": len(measured["lines"]),
        "peak memory, MiB": round(measured["peak"]),
        "limit, MiB": round(2 * max(sizes) / 2**20 + 100),
        "largest file, MiB": round(max(sizes) / 2**20),
        "last lines": measured["lines"][-3:],
    }


def has_good_one(dataset: Path) -> bool:
    """Tell whether the good record's attempt is in a dataset with all of its samples."""
    import hpcrl
    from benchmarks.collecting import SAMPLES

    samples = hpcrl.load(dataset, "samples")
    return int((samples["attempt"] == "local-1").sum()) == SAMPLES


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 1_000
    with tempfile.TemporaryDirectory() as name:
        found = run(count, Path(name))
    for what, value in found.items():
        print(f"  {what:<22} {value}")


if __name__ == "__main__":
    main()
