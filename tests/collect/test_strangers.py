"""Records, plans and datasets of strangers: one of them never stops the others, nor takes the memory of the machine."""

from __future__ import annotations

import json
import os
import pickle
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.hostile import disordered, facts_frame, record_of, unfolding
from hpcrl.collect.merge import check
from hpcrl.collect.reading import read_record
from hpcrl.errors import HpcrlError, UsageError
from hpcrl.formats.record import SAMPLE_COLUMNS, RecordWriter, read_frames
from hpcrl.formats.tables import load_table
from hpcrl.submit.status import plan_status
from tests.builders import cells_of, dqn_study, planned, write_record
from tests.collect.gathering import gathered, no_slurm, rewritten

Frames = list[tuple[str, bytes]]


@pytest.fixture
def plan(tmp_path: Path) -> Path:
    """A plan of two cells; the first has a good record."""
    plan = planned(tmp_path / "p", dqn_study(seeds=2))
    write_record(plan, cells_of(plan)[0])
    return plan


def reasons(tmp_path: Path, plan: Path) -> list[str]:
    """Collect, and see that the good record is merged; return why the others were not."""
    done = gathered(tmp_path / "d", plan)
    assert done.merged == 1
    assert done.outcomes == {"completed": 1}
    return [each.reason for each in done.quarantined]


@pytest.mark.parametrize("kind", ["FIFO", "dangling", "loop", "device", "directory"])
def test_what_is_no_file_is_put_aside(tmp_path: Path, plan: Path, kind: str) -> None:
    cell = cells_of(plan)[1]
    path = plan / "records" / f"{cell['id']}.local-1.n0.r0.rec"
    makers: dict[str, Any] = {
        "FIFO": lambda: os.mkfifo(path),
        "dangling": lambda: path.symlink_to("/nonexistent"),
        "loop": lambda: path.symlink_to(path.name),
        "device": lambda: path.symlink_to("/dev/zero"),
        "directory": lambda: path.mkdir(),
    }
    makers[kind]()
    word = {"FIFO": "a FIFO", "directory": "a directory"}.get(kind, "a symbolic link")
    assert reasons(tmp_path, plan) == [f"is {word}, not a regular file"]
    assert len(check([plan], tmp_path / "other").quarantined) == 1
    assert plan_status(plan, no_slurm()).counts()
    path.rmdir() if kind == "directory" else path.unlink()
    assert gathered(tmp_path / "d", plan).quarantined == []


def hostile(plan: Path, *frames: tuple[str, bytes], header: dict[str, Any] | None = None) -> None:
    """Write a record of the second cell with some frames; its header as a pickle of plain values where it is given."""
    path = write_record(plan, cells_of(plan)[1], outcome=None)
    facts = next(iter(read_frames(path))).payload
    first = facts_frame("header", facts) if header is None else ("header", pickle.dumps(facts | header, 4))
    path.write_bytes(record_of([first, *frames]))


NESTED = "[" * 900 + "]" * 900


@pytest.mark.parametrize(
    ("frames", "header", "reason"),
    [
        ([], {"hardware": {"cpu": "x", "more": b"x"}}, "has a wrong header: 'hardware' contains values that are not plain"),
        ([], {"software": {"x": "\x01" * 60_000}}, "has a wrong header: 'software': expected at most"),
        ([facts_frame("phases", {"seconds": {"act": 1.0}, "counts": {"act": None}})], None, "'act': expected a whole number, got 'None'"),
        ([facts_frame("phases", {"seconds": {str(n): 1.0 for n in range(2000)}, "counts": {}})], None, "2000 names"),
        ([facts_frame("footer", {"outcome": "completed", "reason": "x" * 10**6})], None, "'reason': expected at most 262144 characters, got 1000000"),
        ([facts_frame("event", {"text": f"{n}" + "x" * 10**5}) for n in range(9)], None, "has events of more than"),
        ([facts_frame("event", '{"x":[' + "[]," * 200_000 + "1]}")], None, "facts contain 200002 lists and mappings"),
        ([("event", pickle.dumps({"text": "x" * (3 * 2**20)}, 4))], None, "bytes of text"),
        ([("phases", b"\x80\x04}\x8c\x07seconds" + b"]" * 5000 + b"a" * 4999 + b"s.")], None, "phases of the wrong shape"),
        ([("event", b"\x80\x04}\x8c\x04text" + b"]" * 5000 + b"a" * 4999 + b"s.")], None, "nested too deeply"),
        ([facts_frame("footer", f'{{"outcome":{NESTED}}}')], None, "has a footer with an unknown outcome"),
    ],
    ids=range(11),
)  # fmt: skip
def test_a_record_of_other_shapes_is_put_aside(
    tmp_path: Path, plan: Path, frames: Frames, header: dict[str, Any] | None, reason: str
) -> None:
    hostile(plan, *frames, header=header)
    (told,) = reasons(tmp_path, plan)
    assert reason in told


def test_a_short_text_does_not_unfold(tmp_path: Path, plan: Path) -> None:
    """0.3 MB of references once became 60 MB of JSON in the dataset."""
    (good,) = (plan / "records").iterdir()
    facts = next(iter(read_frames(good))).payload

    class Most:
        def choice(self, values: Any) -> Any:
            return values[-1]

    ((_, data),) = unfolding([facts_frame("header", facts)], Most())  # type: ignore[arg-type]
    assert len(data) < 10**6
    hostile(plan, header=pickle.loads(data))
    (told,) = reasons(tmp_path, plan)
    assert "has more than 2097152 bytes of text" in told


def test_arrays_in_another_order_than_their_bytes(tmp_path: Path) -> None:
    """A second frame of the same layout was read with its arrays swapped."""
    path = tmp_path / "x.rec"
    table, cores = np.full((2, len(SAMPLE_COLUMNS)), 1.0), np.full((2, 2 * len(SAMPLE_COLUMNS)), 2.0, np.float32)
    writer = RecordWriter(path)
    writer.write("samples", {"table": table, "core_percent": cores})
    writer.close()
    data = path.read_bytes()[len(b"hpcrl-record 1\n") + 9 :]
    path.write_bytes(record_of([frame for frame in disordered([("samples", data)], None)]))  # type: ignore[arg-type]
    try:
        frames = [frame.payload for frame in read_frames(path)]
    except Exception as error:
        assert "has a key twice" in str(error)
    else:
        assert [frame["table"].ravel()[0] for frame in frames] == [1.0, 1.0]


def test_whatever_fails_is_one_record_s_failure(tmp_path: Path, plan: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also what no check knows of, when the tables are made of many records."""
    import hpcrl.collect.batches as batches

    bad = write_record(plan, cells_of(plan)[1])
    whole = batches.summaries

    def fails(records: Any, samples: Any) -> Any:
        if any(data.header["cell"] in bad.name for data in records):
            raise ZeroDivisionError("a fault of ours")
        return whole(records, samples)

    monkeypatch.setattr(batches, "summaries", fails)
    assert reasons(tmp_path, plan) == ["cannot be understood (ZeroDivisionError: a fault of ours)"]
    monkeypatch.undo()
    monkeypatch.setattr(batches.Reader, "read", lambda self, path: {}[path])
    assert [each.reason[:30] for each in check([plan], tmp_path / "other").quarantined] == [
        "cannot be understood (KeyError"
    ] * 2


def test_counts_that_add_up_to_more_than_64_bits(tmp_path: Path, plan: Path) -> None:
    for rank in range(4):
        path = write_record(plan, cells_of(plan)[1], rank=rank, outcome=None)
        with rewritten(path) as writer:
            writer.write("footer", {"outcome": "completed", "own_context_switches": 2**62 - 1})
    assert gathered(tmp_path / "d", plan).quarantined == []
    assert load_table(tmp_path / "d")["context_switches"].isna().sum() >= 1


def test_list_columns_that_most_frames_lack(tmp_path: Path, plan: Path) -> None:
    """One wide row would be filled up for all the others."""
    path = write_record(plan, cells_of(plan)[1], outcome=None)
    with rewritten(path) as writer:
        row = np.ones((1, len(SAMPLE_COLUMNS)))
        writer.write("samples", {"table": row, "core_percent": np.ones((1, 10**6), np.float32)})
        for _ in range(9):
            writer.write("samples", {"table": row})
    (told,) = reasons(tmp_path, plan)
    assert "mostly lack 'core_percent'" in told


def test_values_are_kept_as_they_were_reported(tmp_path: Path, plan: Path) -> None:
    entries = [
        {"time": 1.0, "step": 3, "values": {"loss": 1.0, "return": float("nan")}},
        {"time": 2.0, "step": None, "values": {"loss": 0.5, "return": 7.0}},
        {"time": 3.0, "step": 9, "values": {}},
    ]
    path = write_record(plan, cells_of(plan)[1], outcome=None)
    with rewritten(path) as writer:
        writer.write("values", {"entries": entries})
    data = read_record(path)
    assert repr(data.values) == repr(entries)
    assert data.reported.reported == {"loss": [0.5, 0.5, 1.0], "return": [7.0, 7.0, 7.0]}
    assert data.reported.last_step == 9


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"jobs": 7}, "damaged"),
        ({"jobs": [7]}, "damaged"),
        ({"study": {"name": ["x"]}}, "'name': expected text, got \"['x']\""),
        ({"study": []}, "study: expected a mapping, got '[]'"),
        ({"study": {"name": "x", "score": ["x"]}}, "'score': expected text, got"),
        ({"cluster": {"name": "../x", "scheduler": {"kind": "slurm"}}}, "is not a plain name"),
        ({"cells_file": "../../cells.jsonl"}, "is not a plain name"),
        ({"generation": "1"}, "'generation': got '1'"),
        ({"chain": None}, "'chain': got 'None'"),
        ({"reused": {"x": 1}}, "'reused': got"),
        ({"limits": [[]]}, "'limits': got"),
    ],
)
def test_a_manifest_of_other_types_is_one_sentence(
    tmp_path: Path, plan: Path, change: dict[str, Any], reason: str
) -> None:
    manifest = plan / "plan.json"
    manifest.write_text(json.dumps(json.loads(manifest.read_text()) | change))
    for look in (lambda: gathered(tmp_path / "d", plan), lambda: plan_status(plan, no_slurm())):
        with pytest.raises(UsageError, match="is damaged") as told:
            look()
        assert reason in str(told.value)


@pytest.mark.parametrize("name", ["plan.json", "cells.jsonl", "ledger.sqlite"])
@pytest.mark.parametrize("kind", ["FIFO", "link"])
def test_files_of_a_plan_that_are_none(tmp_path: Path, plan: Path, name: str, kind: str) -> None:
    (plan / name).unlink(missing_ok=True)
    os.mkfifo(plan / name) if kind == "FIFO" else (plan / name).symlink_to(plan / "records")
    with pytest.raises(HpcrlError, match=r"not a regular file|is a symbolic link"):
        gathered(tmp_path / "d", plan)


def test_a_manifest_that_is_nested_too_deeply(plan: Path, tmp_path: Path) -> None:
    (plan / "plan.json").write_text('{"format":"hpcrl-plan","x":' + "[" * 100_000 + "]" * 100_000 + "}")
    with pytest.raises(UsageError, match="is damaged"):
        gathered(tmp_path / "d", plan)


def test_cells_that_were_edited_after_planning(tmp_path: Path, plan: Path) -> None:
    cells = plan / "cells.jsonl"
    cells.write_text(cells.read_text().replace('"seed": 0', '"seed": 7').replace('"cpus": 1', '"cpus": 2'))
    with pytest.raises(UsageError, match=r"cells\.jsonl: was changed after the plan was made: restore it"):
        gathered(tmp_path / "d", plan)
    assert not (tmp_path / "d").exists()


@pytest.mark.parametrize("name", ["dataset.json", "quarantine.json"])
@pytest.mark.parametrize(
    "content", ["[", "[1]", '{"format": "hpcrl-dataset", "version": 4}', "[" * 100_000, '[{"record": 1}]']
)
def test_an_index_of_another_shape_is_one_sentence(tmp_path: Path, plan: Path, name: str, content: str) -> None:
    gathered(tmp_path / "d", plan)
    (tmp_path / "d" / name).write_text(content)
    with pytest.raises(UsageError, match="collect into a new directory"):
        gathered(tmp_path / "d", plan)


def test_many_bad_records_are_summed_up(tmp_path: Path, plan: Path, hpcrl: Any) -> None:
    for number in range(300):
        (plan / "records" / f"bad-{number}.rec").write_bytes(b"x" * number)
    found = hpcrl("collect", plan, "-o", tmp_path / "d")
    told = [line for line in found.err.splitlines() if "quarantined" in line]
    assert len(told) == 2
    assert "is not a record of this format (wrong first line) (and 298 similar records)" in told[0]
    assert len(json.loads((tmp_path / "d/quarantine.json").read_text())) == 300


def test_hostile_records_take_little_memory(tmp_path: Path) -> None:
    """The benchmark in small; its large records alone once took gigabytes."""
    found = subprocess.run(
        [sys.executable, "-m", "benchmarks.hostile", "60"], stdout=subprocess.PIPE, text=True, check=True
    )
    facts = dict(line.strip().rsplit(maxsplit=1) for line in found.stdout.splitlines()[:-1])
    assert facts["exit code"] == "0"
    assert facts["the good one merged"] == "True"
    assert int(facts["peak memory, MiB"]) < int(facts["limit, MiB"])
    assert int(facts["lines of output"]) < 60
    shutil.rmtree(tmp_path, ignore_errors=True)
