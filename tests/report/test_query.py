from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hpcrl.collect.merge import collect
from hpcrl.slurm.client import Completed, Slurm
from tests.builders import cells_of, dqn_study, planned, write_record


@pytest.fixture
def dataset(tmp_path: Path) -> Path:
    plan = planned(tmp_path / "p", dqn_study(seeds=3))
    for number, cell in enumerate(cells_of(plan)):
        write_record(plan, cell, training_time=float(number))
    collect([plan], tmp_path / "d", Slurm(lambda arguments, cwd, timeout: Completed(1, "", "")))
    return tmp_path / "d"


def test_all_tables_can_be_asked(hpcrl: Callable[..., Any], dataset: Path) -> None:
    sql = "SELECT seed, training_time FROM cells WHERE outcome = 'completed' ORDER BY seed"
    shown = hpcrl("query", sql, "--dataset", dataset, "--csv")
    assert (shown.code, shown.out.splitlines()[0]) == (0, "seed,training_time")
    assert len(shown.out.splitlines()) == 4
    for table in ("episodes", "samples", "phases"):
        shown = hpcrl("query", f"SELECT count(*) AS n FROM {table}", "--dataset", dataset, "--json")
        assert shown.code == 0
        assert json.loads(shown.out)[0]["n"] == {"episodes": 6, "samples": 6, "phases": 0}[table]


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("SELECT sed FROM cells", "the query failed: Binder Error"),
        ("SELEKT 1", "the query failed: Parser Error"),
        ("SELECT * FROM read_text('/etc/passwd')", "the query failed: Permission Error"),
        ("COPY cells TO '{}/x.csv'", "the query failed: Permission Error"),
        ("SET enable_external_access = true", "the query failed: "),
    ],
)
def test_a_query_that_is_wrong_or_reaches_out(
    hpcrl: Callable[..., Any], dataset: Path, tmp_path: Path, sql: str, expected: str
) -> None:
    shown = hpcrl("query", sql.format(tmp_path), "--dataset", dataset)
    assert shown.code == 2
    assert expected in shown.err
    assert len(shown.err.strip().splitlines()) == 1
    assert not (tmp_path / "x.csv").exists()


def test_no_dataset(hpcrl: Callable[..., Any], tmp_path: Path) -> None:
    shown = hpcrl("query", "SELECT 1", "--dataset", tmp_path)
    assert shown.code == 2
    assert "is not a dataset" in shown.err


def test_an_answer_s_values_as_json(hpcrl: Callable[..., Any], dataset: Path) -> None:
    sql = (
        "SELECT 1.50::DECIMAL(4,2) AS a, DATE '2026-01-02' AS b, 'nan'::DOUBLE AS c, 2::HUGEINT AS d, [1.0, 'inf'::DOUBLE] AS e, "
        "INTERVAL 90 SECOND AS f, TIMESTAMP '2026-01-02 03:04:05' AS g, '\\xAA'::BLOB AS h"
    )
    shown = hpcrl("query", sql, "--dataset", dataset, "--json")
    assert shown.code == 0, shown.err
    assert json.loads(shown.out, parse_constant=pytest.fail) == [
        {
            "a": 1.5, "b": "2026-01-02", "c": None, "d": 2, "e": [1.0, None], "f": 90.0, "g": "2026-01-02T03:04:05", "h": "aa",
        }
    ]  # fmt: skip


@pytest.mark.parametrize("sql", ["", "  ", " ; "])
def test_an_empty_query(hpcrl: Callable[..., Any], dataset: Path, sql: str) -> None:
    shown = hpcrl("query", sql, "--dataset", dataset)
    assert shown.code == 2
    assert shown.err.startswith("hpcrl: the query is empty: give an SQL statement")


@pytest.mark.parametrize("kind", ["fifo", "directory", "text"])
def test_a_part_that_is_none_is_named(hpcrl: Callable[..., Any], dataset: Path, kind: str) -> None:
    (part,) = (dataset / "episodes").iterdir()
    part.unlink()
    match kind:
        case "fifo":
            os.mkfifo(part)
        case "directory":
            part.mkdir()
        case _:
            part.write_text("no table")
    for words in (["query", "SELECT count(*) FROM episodes", "--dataset", dataset], ["report", dataset]):
        shown = hpcrl(*words)
        assert (shown.code, shown.err) == (2, f"hpcrl: {part}: is damaged: collect again into a new directory\n")
