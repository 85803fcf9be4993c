from __future__ import annotations

import json
import pickle
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hpcrl.formats.record import KINDS, MAGIC
from hpcrl.formats.tables import load_table
from tests.builders import cells_of, dqn_study, planned, write_record
from tests.collect.gathering import gathered, raw_frame, rewritten


class Pwn:
    def __reduce__(self) -> Any:
        import os

        return (os.system, ("touch pwned",))


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (MAGIC + raw_frame("header", pickle.dumps({"x": Pwn()})), "a record contains only plain values"),
        (MAGIC + raw_frame("header", pickle.dumps({"cell": 3})), "has a wrong header: 'plan'"),
        (MAGIC + raw_frame("footer", pickle.dumps({"outcome": "completed"})), "does not begin with a header"),
        (MAGIC, "has no complete frame"),
        (b"", "is empty"),
        (b"GIF89a", "is not a record"),
    ],
)
def test_bad_records_are_quarantined_and_the_rest_is_merged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes, reason: str
) -> None:
    monkeypatch.chdir(tmp_path)
    plan = planned(tmp_path / "p", dqn_study())
    (cell,) = cells_of(plan)
    write_record(plan, cell)
    bad = plan / "records" / "bad.rec"
    bad.write_bytes(content)
    done = gathered(tmp_path / "d", plan)
    assert done.merged == 1
    (entry,) = done.quarantined
    assert reason in entry.reason
    assert entry.file == str(bad)
    assert json.loads((tmp_path / "d" / "quarantine.json").read_text()) == [entry.entry]
    assert not (tmp_path / "pwned").exists()
    assert gathered(tmp_path / "d", plan).quarantined == [entry]


def test_a_record_of_another_plan_is_quarantined(tmp_path: Path) -> None:
    plan, other = planned(tmp_path / "p", dqn_study()), planned(tmp_path / "q", dqn_study(seeds=2))
    path = write_record(other, cells_of(other)[1])
    path.rename(plan / "records" / path.name)
    (entry,) = gathered(tmp_path / "d", plan).quarantined
    assert entry.reason == "belongs to a cell that is not in this plan"


HALF = "no file M\udcfcller"  # as Python names a file whose name is not UTF-8


@pytest.mark.parametrize(
    ("header", "frame"),
    [
        ({"job_id": HALF, "hardware": {"cpu": HALF}}, ("event", {"text": HALF})),
        ({}, ("footer", {"outcome": "failed", "reason": HALF})),
        ({}, ("values", {"entries": [{"time": 1.0, "step": 1, "values": {HALF: 1.0}}]})),
        ({}, ("phases", {"seconds": {HALF: 1.0}, "counts": {}})),
    ],
)
def test_text_that_is_no_unicode_is_kept_as_far_as_it_goes(
    tmp_path: Path, header: dict[str, Any], frame: tuple[str, dict[str, Any]]
) -> None:
    plan = planned(tmp_path / "p", dqn_study())
    (cell,) = cells_of(plan)
    with rewritten(write_record(plan, cell, outcome=None), **header) as writer:
        writer.write(*frame)
    assert gathered(tmp_path / "d", plan).merged == 1
    tables = [load_table(tmp_path / "d", name).to_csv() for name in ("cells", "episodes", "phases")]
    assert "no file M?ller" in "".join(tables)


@pytest.mark.parametrize(
    ("header", "footer", "reason"),
    [
        ({"calibration": {"matrix": "fast"}}, {}, "has a wrong header: 'matrix': expected a number, got 'fast'"),
        ({"calibration": {"matrix": None}}, {}, "has a wrong header: 'matrix': expected a number, got 'None'"),
        ({"hardware": {"gpus": [1]}}, {}, "has a wrong header: 'gpus': expected a list of names"),
        ({"hardware": {"host": 3}}, {}, "has a wrong header: 'host': expected text, got '3'"),
        ({"code": {"surroundings": "[]"}}, {}, "has a wrong header: 'surroundings': expected a mapping as JSON"),
        ({}, {"messages": "many"}, "has a wrong footer: 'messages': expected a mapping as JSON"),
        ({}, {"outcome": np.ones((0, 0))}, "has a footer with an unknown outcome: '[]'"),
    ],
)
def test_what_is_of_the_wrong_kind_is_named_and_the_rest_is_merged(
    tmp_path: Path, header: dict[str, Any], footer: dict[str, Any], reason: str
) -> None:
    plan = planned(tmp_path / "p", dqn_study(seeds=2))
    good, odd = cells_of(plan)
    write_record(plan, good)
    with rewritten(write_record(plan, odd), **header) as writer:
        writer.write("footer", {"outcome": "completed"} | footer)
    done = gathered(tmp_path / "d", plan)
    assert done.merged == 1
    assert [entry.reason for entry in done.quarantined] == [reason]


def test_a_restart_that_is_no_number_is_part_of_the_attempts_name(tmp_path: Path) -> None:
    plan = planned(tmp_path / "p", dqn_study())
    (cell,) = cells_of(plan)
    path = write_record(plan, cell, attempt="7_0-1")
    with rewritten(path, attempt="7_0-²") as writer:
        writer.write("footer", {"outcome": "completed"})
    path.rename(path.with_name(path.name.replace("7_0-1", "7_0-²")))
    gathered(tmp_path / "d", plan)
    (row,) = load_table(tmp_path / "d").to_dict("records")
    assert (row["attempt"], row["outcome"]) == ("7_0-²", "completed")


@pytest.mark.parametrize("column", ["plan", "attempt", "node"])
def test_a_record_whose_names_lead_elsewhere(tmp_path: Path, column: str) -> None:
    plan = planned(tmp_path / "p", dqn_study(seeds=2))
    first, second = cells_of(plan)
    write_record(plan, first)
    with rewritten(write_record(plan, second), **{column: "../../x"}) as writer:
        writer.write("footer", {"outcome": "completed"})
    done = gathered(tmp_path / "d", plan)
    assert [f"{column!r} is not a plain name" in entry.reason for entry in done.quarantined] == [True]
    assert len(load_table(tmp_path / "d")) == 1


HEADER = (
    "plan", "cell", "attempt", "node", "rank", "started", "hardware", "code", "clock_offset", "job_id", "format",
    "software", "variables", "calibration",
)  # fmt: skip
KEYS = (
    "outcome",
    "wall_time",
    "steps",
    "entries",
    "seconds",
    "counts",
    "table",
    "core_percent",
    "time",
    "text",
    "matrix",
)
ANY = st.characters(exclude_categories=())  # halves of characters too
PLAIN = st.none() | st.booleans() | st.integers() | st.floats() | st.text(ANY, max_size=5)
NESTED = st.recursive(
    PLAIN,
    lambda each: (
        st.lists(each, max_size=3) | st.dictionaries(st.sampled_from(("values", "step", "act", "matrix", "cpu")), each)
    ),
)
ARRAYS = st.tuples(st.integers(0, 3), st.integers(0, 30)).map(np.ones)
FRAMES = st.tuples(st.sampled_from(KINDS), st.dictionaries(st.sampled_from(KEYS), NESTED | ARRAYS, max_size=4))


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(header=st.dictionaries(st.sampled_from(HEADER), NESTED, max_size=3), frames=st.lists(FRAMES, max_size=4))
def test_whatever_a_record_says_the_others_are_merged(
    tmp_path: Path, header: dict[str, Any], frames: list[tuple[str, dict[str, Any]]]
) -> None:
    plan = tmp_path / "p"
    if not plan.exists():
        planned(plan, dqn_study(seeds=2))
    for path in (plan / "records").iterdir():
        path.unlink()
    shutil.rmtree(tmp_path / "d", ignore_errors=True)
    good, odd = cells_of(plan)
    write_record(plan, good)
    with rewritten(write_record(plan, odd, outcome=None), **header) as writer:
        for kind, payload in frames:
            writer.write(kind, payload)
    done = gathered(tmp_path / "d", plan)
    assert done.merged + len(done.quarantined) == 2
    assert done.outcomes["completed"] >= 1
