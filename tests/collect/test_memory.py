"""The memory that collecting takes where records are large or many."""

from __future__ import annotations

import json
import tracemalloc
from pathlib import Path

import pytest

from hpcrl.collect import merge, workers
from hpcrl.collect.finding import Refusal
from hpcrl.collect.merge import _quarantine_text, collect
from hpcrl.formats.files import write_atomically
from tests.collect.gathering import gathered, no_slurm
from tests.collect.test_holding import contents, plan_with_records


def test_of_many_batches_this_process_reads_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = plan_with_records(tmp_path / "p", 4)
    gathered(tmp_path / "whole", plan)
    monkeypatch.setattr(merge, "BATCH_RECORDS", 1)
    monkeypatch.setattr(merge, "MANY_BATCHES", 4)

    def here(*_: object) -> dict[str, str]:
        raise AssertionError("a batch was read here")

    monkeypatch.setattr(workers, "merge_batch", here)
    assert collect([plan], tmp_path / "d", no_slurm(), processes=1).merged == 4
    assert contents(tmp_path / "d") == contents(tmp_path / "whole")
    monkeypatch.setattr(merge, "MANY_BATCHES", 5)
    with pytest.raises(AssertionError, match="was read here"):
        collect([plan], tmp_path / "e", no_slurm(), processes=1)


def test_the_quarantine_is_written_in_pieces(tmp_path: Path) -> None:
    refusals = [Refusal("p", "/somewhere/records", f"{number}.rec", "is empty") for number in range(20_000)]
    tracemalloc.start()
    write_atomically(tmp_path / "quarantine.json", _quarantine_text(refusals))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert json.loads((tmp_path / "quarantine.json").read_text())[-1] == refusals[-1].entry
    assert peak < 200_000 < (tmp_path / "quarantine.json").stat().st_size
