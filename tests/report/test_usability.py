"""The table of what a framework costs its user."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from hpcrl.collect.merge import collect
from hpcrl.errors import UsageError
from hpcrl.formats.usability import (
    MOST_CHARACTERS,
    Failure,
    Measurement,
    Usability,
    as_facts,
    read_usability,
    write_usability,
)
from hpcrl.report.usability import to_csv, usability_table
from tests.builders import cells_of, dqn_study, planned, write_record
from tests.collect.gathering import no_slurm
from tests.conftest import Shown

RUN = Measurement(
    framework="torch", version="2.13.0", environment="torch-cpu-1", device="cpu", execution="eager", size=900 * 2**20,
    build_seconds=None, import_seconds=3.0, first_update_seconds=0.06, update_seconds=0.001, peak_memory=250 * 2**20,
    lines={"core": 100, "layers": 20, "dqn": 30, "ppo": 40}, traceback_lines=25, traceback_characters=1_600,
    traceback_end="RuntimeError: <shapes>", names_page=True,
)  # fmt: skip


def measured(*runs: Measurement) -> Usability:
    return Usability("0.1.0+1", {"cpu": "Some CPU"}, list(runs))


def rows(*runs: Measurement) -> list[dict[str, str]]:
    table = usability_table(measured(*runs))
    return [dict(zip(table.columns, row, strict=True)) for row in table.rows]


def test_a_row_for_each_mode_with_medians() -> None:
    runs = [replace(RUN, import_seconds=seconds) for seconds in (3.0, 9.0, 4.0)]
    lazy = replace(RUN, execution="lazy", first_update_seconds=44.0, traceback_lines=419, names_page=False)
    first, second = rows(runs[0], lazy, runs[1], runs[2])
    assert first == {
        "framework": "PyTorch 2.13.0", "mode": "eager", "environment (MiB)": "900", "import (s)": "4",
        "first update (s)": "0.060", "later update (ms)": "1", "peak memory (MiB)": "250", "lines: shared": "120",
        "lines: algorithms": "70", "traceback (lines)": "25", "traceback (characters)": "1,600",
        "the traceback names the page": "yes", "last line of the traceback": "RuntimeError: <shapes>",
    }  # fmt: skip
    assert (second["mode"], second["traceback (lines)"], second["the traceback names the page"]) == (
        "lazy",
        "419",
        "no",
    )


def test_a_build_time_that_is_not_recorded_is_not_made_up() -> None:
    other = replace(RUN, framework="jax", environment="jax-cpu-1", build_seconds=12.345)
    assert [row["build (s)"] for row in rows(RUN, other)] == ["not recorded", "12.3"]
    assert "build (s)" not in rows(RUN)[0]


def test_the_report_has_the_table(tmp_path: Path, hpcrl: Callable[..., Shown]) -> None:
    plan = planned(tmp_path / "p", dqn_study())
    for cell in cells_of(plan):
        write_record(plan, cell)
    collect([plan], tmp_path / "d", no_slurm())
    write_usability(tmp_path / "u.json", measured(RUN, replace(RUN, execution="lazy")))
    words = ("report", tmp_path / "d", "-o", tmp_path / "r", "--figures", "none")
    assert hpcrl(*words).code == 0
    assert "What a framework costs its user" not in (tmp_path / "r/report.html").read_text()
    assert hpcrl(*words, "--usability", tmp_path / "u.json").code == 0
    page = (tmp_path / "r/report.html").read_text()
    assert page.count('<h2 id="usability-title">What a framework costs its user</h2>') == 1
    assert '<td class="left">RuntimeError: &lt;shapes&gt;</td>' in page
    assert "Medians of 1 run, each in new processes, on Some CPU, one thread, by hpcrl 0.1.0+1." in page
    table = pd.read_csv(tmp_path / "r/usability.csv")
    assert list(table["execution"]) == ["eager", "lazy"]
    assert list(table["size_bytes"]) == [900 * 2**20] * 2
    assert list(table["lines"]) == [190, 190]
    shown = hpcrl("report", tmp_path / "d", "--usability", tmp_path / "u.json", "--site", tmp_path / "s")
    assert shown.code == 0
    index, page = ((tmp_path / "s" / name).read_text() for name in ("index.html", "short/index.html"))
    assert (
        index.count(">What a framework costs its user</h2>"),
        page.count(">What a framework costs its user</h2>"),
    ) == (1, 0)
    assert (tmp_path / "s/usability.csv").read_text() == (tmp_path / "r/usability.csv").read_text()


def test_a_mode_that_failed_has_a_row_that_says_why() -> None:
    lazy, later = (
        Failure("torch", "torch-cpu-1", "lazy", "no compiler"),
        Failure("torch", "torch-cpu-1", "eager", "killed"),
    )
    table = usability_table(replace(measured(RUN), failures=[lazy, later]))
    first, second = [dict(zip(table.columns, row, strict=True)) for row in table.rows]
    assert (first["mode"], first["import (s)"], first["why a run failed"]) == ("eager", "3", "killed")
    assert {name: text for name, text in second.items() if text != "–"} == {
        "framework": "PyTorch",
        "mode": "lazy",
        "why a run failed": "no compiler",
    }
    assert "device" not in table.columns
    nothing = usability_table(replace(measured(), failures=[lazy]))
    assert nothing.rows == [["PyTorch", "lazy", "no compiler"]]
    assert nothing.measured == "No run succeeded on Some CPU, one thread, by hpcrl 0.1.0+1."


def test_the_csv_has_the_runs_that_failed(tmp_path: Path) -> None:
    failed = replace(measured(RUN), failures=[Failure("torch", "torch-cpu-1", "lazy", "no compiler")])
    write_usability(tmp_path / "u.json", failed)
    assert read_usability(tmp_path / "u.json") == failed
    (tmp_path / "u.csv").write_text(to_csv(failed))
    ran, other = pd.read_csv(tmp_path / "u.csv", dtype=str).to_dict("records")
    assert (ran["traceback_lines"], ran["import_seconds"], other["execution"], other["reason"]) == (
        "25",
        "3",
        "lazy",
        "no compiler",
    )


def test_no_character_of_a_file_is_obeyed(tmp_path: Path) -> None:
    odd = "\x1b[31m\u202e\ud800\x00"
    write_usability(tmp_path / "u.json", Usability(odd, {"cpu": odd}, [replace(RUN, version=odd, traceback_end=odd)]))
    table = usability_table(read_usability(tmp_path / "u.json"))
    for text in (table.measured, table.rows[0][0], table.rows[0][-1]):
        assert r"\x1b[31m\u202e\ud800\x00" in text
        assert text.isprintable()


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("size", 10**400, "expected a number of at least 0 and less than 2^62"),
        ("import_seconds", 10**400, "expected a number of at least 0 and less than 2^62"),
        ("update_seconds", math.nan, "expected a number of at least 0 and less than 2^62, got nan"),
        ("build_seconds", math.inf, "expected a number of at least 0 and less than 2^62, got inf"),
        ("peak_memory", -1, "expected a number of at least 0 and less than 2^62, got -1"),
        ("lines", {"core": -1}, "expected a number of at least 0 and less than 2^62, got -1"),
        ("size", True, "wrong type"),
        ("names_page", 1, "wrong type"),
        ("traceback_end", "x" * (MOST_CHARACTERS + 1), f"expected at most {MOST_CHARACTERS} characters"),
    ],
)
def test_values_that_no_measurement_has(tmp_path: Path, name: str, value: object, text: str) -> None:
    path = tmp_path / "u.json"
    path.write_text(json.dumps(as_facts(measured(RUN)) | {"runs": [vars(RUN) | {name: value}]}))
    with pytest.raises(UsageError) as stop:
        read_usability(path)
    assert f"{name!r}: " in str(stop.value)
    assert text in str(stop.value)


def test_a_processor_that_is_not_a_text(tmp_path: Path) -> None:
    write_usability(tmp_path / "u.json", Usability("1", {"cpu": ["x"]}, [RUN]))
    with pytest.raises(UsageError, match="'cpu': expected a text"):
        read_usability(tmp_path / "u.json")


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda content: "{", "is not valid JSON"),
        (lambda content: "[" * 100_000, "is not valid JSON"),
        (lambda content: "[]", "expected measurements of environments in format 1"),
        (lambda content: json.dumps(content | {"format": 2}), "expected measurements of environments in format 1"),
        (lambda content: json.dumps(content | {"runs": []}), "has no measurements"),
        (lambda content: json.dumps(content | {"runs": [{"framework": "torch"}]}), "a measurement is incomplete"),
        (lambda content: json.dumps(content | {"runs": {"a": 1}}), "a measurement is incomplete"),
        (lambda content: json.dumps(content | {"machine": 1}), "'machine': got '1', which has a wrong type"),
        (
            lambda content: json.dumps(content | {"runs": [content["runs"][0] | {"size": "x"}]}),
            "'size': got 'x', which has a wrong type",
        ),
    ],
)
def test_a_file_that_is_not_one(tmp_path: Path, change: Callable[[Any], str], text: str) -> None:
    path = tmp_path / "u.json"
    write_usability(path, measured(RUN))
    assert read_usability(path) == measured(RUN)
    path.write_text(change(json.loads(path.read_text())))
    with pytest.raises(UsageError, match=text) as stop:
        read_usability(path)
    assert "\n" not in str(stop.value)
    with pytest.raises(UsageError, match="cannot be read: No such file"):
        read_usability(tmp_path / "missing.json")
