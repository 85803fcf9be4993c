from __future__ import annotations

from pathlib import Path

import pyarrow as pa

from hpcrl.formats.tables import SCHEMAS


def test_the_data_dictionary_is_complete_and_true() -> None:
    text = (Path(__file__).parents[2] / "docs/data-dictionary.md").read_text()
    for schema in SCHEMAS.values():
        for column in schema:
            metadata = {key.decode(): value.decode() for key, value in column.metadata.items()}
            kind = "string" if pa.types.is_dictionary(column.type) else column.type
            row = f"| `{column.name}` | {kind} | {metadata.get('unit', '')} | {metadata['description']} |"
            assert row in text
