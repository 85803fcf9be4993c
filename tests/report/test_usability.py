"""The table of what a framework costs its user."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from hpcrl.collect.merge import collect
from hpcrl.errors import UsageError
from hpcrl.formats.usability import Measurement, Usability, read_usability, write_usability
from hpcrl.report.usability import usability_table
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
    assert (shown.code, shown.err) == (2, "hpcrl: --usability: is for a single report: leave out --site\n")


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
