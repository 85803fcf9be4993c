from __future__ import annotations

import re
from pathlib import Path

import pytest

from hpcrl.errors import UsageError
from hpcrl.formats import finding
from hpcrl.formats.finding import find_cell, find_cells
from hpcrl.formats.plan import read_cells, read_plan
from tests.builders import command_study, planned
from tests.formats.test_plan import extended


def test_cells_of_two_generations_are_found_in_the_order_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = planned(tmp_path / "p", command_study(["true"], seeds=3), "sol")
    old = list(read_cells(plan))
    extended(plan)
    now = read_plan(plan)
    reads: list[int] = []
    monkeypatch.setattr(finding, "read_cells", lambda *given: reads.append(1) or read_cells(*given))
    texts = [old[2].id[:8], old[0].id, old[1].id[:9], old[0].id]
    found = find_cells(plan, now, texts, older=True)
    assert [cell for cell, _, _ in found] == [old[2], old[0], old[1], old[0]]
    assert [index for _, _, index in found] == [1, 0, 0, 0]
    assert len(reads) == 2  # once for each generation
    with pytest.raises(UsageError, match=f"cell {old[0].id} .* belongs to generation 1 and is no longer in the study"):
        find_cell(plan, now, old[0].id)
    assert find_cells(plan, now, []) == []


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "3 cells of .*p begin with ''"),
        ("xyz", "no cell of .*p begins with 'xyz'"),
        ("ID-", "no cell of .*p begins with '.*-'"),
    ],
)
def test_a_beginning_of_no_cell_or_of_several_is_refused(tmp_path: Path, text: str, expected: str) -> None:
    plan = planned(tmp_path / "p", command_study(["true"], seeds=3), "sol")
    first = next(iter(read_cells(plan))).id
    with pytest.raises(UsageError, match=re.compile(expected)):
        find_cells(plan, read_plan(plan), [first, text.replace("ID", first)])
