from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpcrl.collect.arrays import column, numbers
from tests.builders import cells_of, dqn_study, planned, write_record

WORDS = pa.dictionary(pa.int32(), pa.string())


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (pa.string(), st.text(max_size=3)),
        (WORDS, st.sampled_from(["", "a", "ä€", "long word"])),
        (pa.int64(), st.integers(-(2**63), 2**63 - 1)),
        (pa.float64(), st.floats(allow_nan=False) | st.integers(-9, 9)),
        (pa.bool_(), st.booleans()),
    ],
    ids=str,
)
def test_a_column_is_what_pyarrow_makes_of_the_values(kind: pa.DataType, values: st.SearchStrategy[Any]) -> None:
    @settings(deadline=None)
    @given(rows=st.lists(st.none() | values, max_size=20))
    def check(rows: list[Any]) -> None:
        made = column(rows, kind)
        made.validate(full=True)
        assert made.equals(pa.array(rows, kind))

    check()


def test_numbers_of_a_slice_with_some_unknown() -> None:
    rows = np.arange(12.0).reshape(4, 3)
    made = numbers(rows[:, 1], np.array([False, True, False, False]))
    assert made.to_pylist() == [1.0, None, 7.0, 10.0]


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(OverflowError):
        column([2**63], pa.int64())
    with pytest.raises(ValueError, match="could not convert"):
        column(["x"], pa.float64())


def test_a_collect_does_without_pandas(tmp_path: Path) -> None:
    """To import it takes longer than all the rest of a small collect; pyarrow does so where one does not look."""
    plan = planned(tmp_path / "p", dqn_study())
    (cell,) = cells_of(plan)
    write_record(plan, cell)
    program = """
import atexit, sys
from hpcrl.cli.main import main
atexit.register(lambda: print("pandas" in sys.modules))
main()
"""
    for _ in ("new", "nothing new"):
        command = [sys.executable, "-c", program, "collect", str(plan), "-o", str(tmp_path / "d")]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        assert done.stdout.splitlines()[-1] == "False", done.stdout
