from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from hpcrl.collect.merge import collect
from hpcrl.formats.tables import SCHEMAS
from tests.builders import cells_of, dqn_study, planned, write_record
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
