"""One batch of records: read each, and write them as one part of each table."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from hpcrl.collect.arrays import column
from hpcrl.collect.columns import tables
from hpcrl.collect.finding import Found
from hpcrl.collect.parts import SUMMARIES, SUMMARY_SCHEMA, part_file, write_part
from hpcrl.collect.reading import PROVENANCE, Reader, RecordData, provenance_text
from hpcrl.collect.summaries import Samples, summaries
from hpcrl.errors import HpcrlError
from hpcrl.formats.memory import without_gc
from hpcrl.formats.record import RecordError, record_name


@without_gc()
def merge_batch(
    dataset: Path, number: int, batch: list[Found], cells: dict[str, set[str]], lease: Path
) -> dict[str, str]:
    """Write one part of each table; return the records that were refused, with the reason.

    The lease is that of :func:`hpcrl.collect.parts.write_part`.
    """
    with np.errstate(all="ignore"):  # untrusted numbers may be of any size
        try:
            return _write_batch(dataset, number, batch, cells, lease)
        except (OSError, HpcrlError):
            raise
        except Exception:
            # A record has a fault that no check knows. Each record is tried alone, and only those that fail are left out.
            refused: dict[str, str] = {}
            for record in batch:
                try:
                    refused |= _write_batch(dataset, number, [record], cells, lease)
                except (OSError, HpcrlError):
                    raise
                except Exception as error:
                    refused[record.name] = unforeseen(error)
            return refused | _write_batch(
                dataset, number, [record for record in batch if record.name not in refused], cells, lease
            )


def _write_batch(
    dataset: Path, number: int, batch: list[Found], cells: dict[str, set[str]], lease: Path
) -> dict[str, str]:
    refused = {}
    reader = Reader()
    read = []
    texts: dict[str, tuple[Any, str]] = {}  # the latest value of each kind of provenance, because nearly all are equal
    named = ("plan", "cell", "record", *PROVENANCE)
    kept = []
    for record in batch:
        try:
            data = read_found(record, cells, reader)
            for name in PROVENANCE:
                value = data.header.pop(name, None)
                if name not in texts or texts[name][0] != value:
                    texts[name] = value, provenance_text(name, value)
        except RecordError as error:
            refused[record.name] = str(error)
        except Exception as error:
            refused[record.name] = unforeseen(error)
        else:
            read.append(data)
            kept.append((record.plan, data.header["cell"], record.file_name, *(texts[name][1] for name in PROVENANCE)))
    samples = Samples.of(read)
    words = {name: [row[place] for row in kept] for place, name in enumerate(named)}
    words["summary"] = [json.dumps(summary) for summary in summaries(read, samples)]
    for table, content in tables(read, samples):
        write_part(part_file(dataset, table, number), content, lease)
    columns = [column(words[field.name], field.type) for field in SUMMARY_SCHEMA]
    write_part(part_file(dataset, SUMMARIES, number), pa.Table.from_arrays(columns, schema=SUMMARY_SCHEMA), lease)
    return refused


def unforeseen(error: Exception) -> str:
    """Return the sentence for a record that could not be read, with an error that no check names."""
    if isinstance(error, RecursionError):
        return "contains values that are nested too deeply"
    if isinstance(error, MemoryError):
        return "needs more memory than is available"
    return f"cannot be understood ({type(error).__name__}: {str(error)[:200]})"


def read_found(found: Found, cells: dict[str, set[str]], reader: Reader) -> RecordData:
    """Read a record, and check that it belongs to its plan.

    Args:
        cells: the ids of the cells of each plan.

    Raises:
        RecordError: it cannot be read or trusted.
    """
    data = reader.read(found.file)
    head = data.header
    if head["plan"] != found.plan or head["cell"] not in cells[found.plan]:
        raise RecordError("belongs to a cell that is not in this plan")
    if found.file_name != (name := record_name(head["cell"], head["attempt"], head["node"], head["rank"])):
        raise RecordError(f"has the content of {name}: is it a copy?")
    return data
