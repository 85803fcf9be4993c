from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from hpcrl.collect.merge import collect
from hpcrl.errors import UsageError
from hpcrl.formats.runs import hosts
from hpcrl.formats.tables import SCHEMAS, load_table
from tests.builders import cells_of, command_study, dqn_study, planned, ranks_study, write_record
from tests.collect.gathering import no_slurm
from tests.conftest import Shown


def test_the_data_dictionary_is_complete_and_true() -> None:
    text = (Path(__file__).parents[2] / "docs/data-dictionary.md").read_text()
    for schema in SCHEMAS.values():
        for column in schema:
            metadata = {key.decode(): value.decode() for key, value in column.metadata.items()}
            kind = "string" if pa.types.is_dictionary(column.type) else column.type
            row = f"| `{column.name}` | {kind} | {metadata.get('unit', '')} | {metadata['description']} |"
            assert row in text


def test_a_dataset_of_an_older_hpcrl_does_not_say_on_how_many_hosts_a_cell_ran(tmp_path: Path) -> None:
    plan = planned(tmp_path / "p", ranks_study(2, nodes=2), "sol")
    (cell,) = cells_of(plan)
    for rank in range(2):
        write_record(
            plan, cell, "7_0-0", rank=rank, ranks=2, node="n", header={"hardware": {"host": "lab", "threads": 2}}
        )
    collect([plan], tmp_path / "d", no_slurm())
    assert list(hosts(load_table(tmp_path / "d"))) == [1]
    (part,) = (tmp_path / "d/cells").glob("*.parquet")
    pq.write_table(pq.read_table(part).drop_columns("hosts"), part)
    assert list(hosts(load_table(tmp_path / "d"))) == [2]  # as many as nodes
    other = planned(tmp_path / "q", dqn_study())
    collect([other], tmp_path / "d", no_slurm())
    assert list(load_table(tmp_path / "d")["hosts"].isna()) == [True]


@pytest.mark.parametrize("column", ["study", "cluster", "cell", "attempt"])
@pytest.mark.parametrize("name", ["../../x", "/tmp/x", "..", "a/b", "\x1b[31m", ""])
def test_a_dataset_of_a_stranger_writes_nothing_elsewhere(
    tmp_path: Path, hpcrl: Callable[..., Shown], column: str, name: str
) -> None:
    plan = planned(tmp_path / "p", dqn_study(seeds=1))
    for cell in cells_of(plan):
        write_record(plan, cell)
    dataset = tmp_path / "d"
    collect([plan], dataset, no_slurm())
    (part,) = (dataset / "cells").glob("*.parquet")
    rows = pq.read_table(part)
    place = rows.column_names.index(column)
    pq.write_table(rows.set_column(place, rows.schema.field(column), pa.array([name]).dictionary_encode()), part)
    before = sorted(tmp_path.rglob("*"))
    for words in (
        ("report", dataset, "-o", tmp_path / "o"),
        ("export", dataset, "-o", tmp_path / "o", "--to", "openrlbenchmark"),
    ):
        shown = hpcrl(*words)
        assert shown.code == 2
        assert f"{dataset}: contains a {column} named {name!r}, which no plan gives" in shown.err
    assert sorted(tmp_path.rglob("*")) == before


WRONG = [
    ("settings", "{not json", "expected a mapping as JSON"),
    ("settings", "[1]", "expected a mapping as JSON"),
    ("config", "[" * 10**5, "expected a mapping as JSON"),
    ("settings", '{"a": "' + "v" * 300_000 + '"}', "expected at most 262144 characters, got 300009"),
    ("config", '{"framework": {"x": 1}}', "'framework': expected text, got \"{'x': 1}\""),
    ("config", '{"actors": "many"}', "'actors': expected a whole number, got 'many'"),
    ("hardware", '{"gpus": "none"}', "'gpus': expected a list of names"),
    ("hardware", '{"threads": "two"}', "'threads': expected a whole number, got 'two'"),
    ("messages", '{"transitions": ["many"]}', "'transitions': expected a list of whole numbers"),
]


@pytest.mark.parametrize(("column", "text", "expected"), WRONG, ids=range(len(WRONG)))
def test_a_mapping_in_a_dataset_of_a_stranger_is_what_its_column_should_hold(
    tmp_path: Path, hpcrl: Callable[..., Shown], column: str, text: str, expected: str
) -> None:
    dataset = with_text(tmp_path, dqn_study(), column, text)
    shown = hpcrl("report", str(dataset), "--figures", "none")
    assert shown.code == 2
    assert shown.err.startswith(
        f"hpcrl: {dataset}: column {column!r} of its cells contains what no plan gives ({expected})"
    )


def test_the_axes_of_a_users_command_have_any_values(tmp_path: Path) -> None:
    dataset = with_text(tmp_path, command_study(["true"]), "config", '{"actors": "many", "clip": Infinity}')
    assert list(load_table(dataset, "runs")["actors"]) == ["many"]
    dataset = with_text(tmp_path / "2", command_study(["true"]), "hardware", '{"threads": "two"}')
    with pytest.raises(UsageError, match="'threads': expected a whole number"):
        load_table(dataset)


def with_text(tmp_path: Path, study: dict[str, Any], column: str, text: str) -> Path:
    """Return a dataset whose cell has another text in a column."""
    plan, dataset = planned(tmp_path / "p", study), tmp_path / "d"
    write_record(plan, cells_of(plan)[0])
    collect([plan], dataset, no_slurm())
    (part,) = (dataset / "cells").glob("*.parquet")
    table = pq.read_table(part)
    place, kind = table.column_names.index(column), table.schema.field(column).type
    changed = pa.array([text], pa.string())
    changed = changed.dictionary_encode().cast(kind) if pa.types.is_dictionary(kind) else changed
    pq.write_table(table.set_column(place, table.schema.field(place), changed), part)
    return dataset
