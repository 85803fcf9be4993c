"""A damaged table of a dataset: every command names the file and what to do."""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from hpcrl import load
from hpcrl.collect.merge import collect
from hpcrl.errors import UsageError
from hpcrl.formats.damage import reading
from hpcrl.formats.tables import SCHEMAS
from tests.builders import cells_of, dqn_study, planned, write_record
from tests.collect.gathering import no_slurm
from tests.conftest import Shown


@pytest.fixture
def dataset(tmp_path: Path) -> Path:
    plan = planned(tmp_path / "p", dqn_study(seeds=2))
    for cell in cells_of(plan):
        write_record(plan, cell)
    collect([plan], tmp_path / "d", no_slurm())
    return tmp_path / "d"


def junk(part: Path) -> None:
    part.write_bytes(b"junk" * 100)


def another_schema(part: Path) -> None:
    pq.write_table(pa.table({"rank": ["x"], "cpus": ["x"], "total": ["x"]}), part)


def broken_pages(part: Path) -> None:
    content = bytearray(part.read_bytes())
    content[4:400] = bytes(396)
    part.write_bytes(content)


@pytest.mark.parametrize("table", SCHEMAS)
@pytest.mark.parametrize("damage", [junk, another_schema])
def test_every_table(
    tmp_path: Path, hpcrl: Callable[..., Shown], dataset: Path, table: str, damage: Callable[[Path], None]
) -> None:
    part = dataset / table / "part-00000.parquet"
    part.parent.mkdir(exist_ok=True)
    damage(part)
    expected = f"{part}: is damaged: collect again into a new directory"
    for words in (
        ("report", dataset, "-o", tmp_path / "o"),
        ("export", dataset, "-o", tmp_path / "e"),
        ("query", f"SELECT * FROM {table}", "--dataset", dataset),
    ):
        shown = hpcrl(*words)
        assert (shown.code, shown.err) == (2, f"hpcrl: {expected}\n"), words
    with pytest.raises(UsageError, match="is damaged"):
        load(dataset, table)


def test_pages_that_cannot_be_read(tmp_path: Path, hpcrl: Callable[..., Shown], dataset: Path) -> None:
    part = dataset / "episodes/part-00000.parquet"
    broken_pages(part)
    for words in (("report", dataset, "-o", tmp_path / "o"), ("query", "FROM episodes", "--dataset", dataset)):
        shown = hpcrl(*words)
        assert (shown.code, shown.err) == (2, f"hpcrl: {part}: is damaged: collect again into a new directory\n")


@pytest.mark.parametrize("table", ["cells", "records"])
def test_collect_and_reuse_name_the_file(
    tmp_path: Path, hpcrl: Callable[..., Shown], dataset: Path, table: str
) -> None:
    part = dataset / table / "part-00000.parquet"
    junk(part)
    another = planned(tmp_path / "q", dqn_study(name="other"))
    for cell in cells_of(another):
        write_record(another, cell)
    commands = [("collect", another, "-o", dataset)]
    if table == "cells":
        commands.append(("plan", "--study", "quickstart", "--reuse", dataset, "-o", tmp_path / "new"))
    for words in commands:
        shown = hpcrl(*words)
        assert shown.code == 2
        assert shown.err.splitlines()[-1] == f"hpcrl: {part}: is damaged: collect again into a new directory"


def test_a_part_that_may_not_be_read_is_not_called_damaged(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"part: cannot be read: Permission denied$"), reading(tmp_path / "part"):
        raise PermissionError(errno.EACCES, "Failed to open local file")


def test_the_advice_of_a_directory_that_is_not_a_dataset_can_be_followed(
    tmp_path: Path, hpcrl: Callable[..., Shown], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    plan = planned(tmp_path / "p", dqn_study(seeds=1))
    write_record(plan, cells_of(plan)[0])
    shown = hpcrl("report", "p")
    advice = "hpcrl collect p -o p/dataset"
    assert (shown.code, shown.err) == (
        2, f"hpcrl: p: is not a dataset (no dataset.json): it is a plan: make one with `{advice}`\n"
    )  # fmt: skip
    assert hpcrl(*advice.split()[1:]).code == 0
    assert hpcrl("report", "p").err == "hpcrl: p: is not a dataset (no dataset.json): give p/dataset\n"
    (tmp_path / "full").mkdir()
    (tmp_path / "full/file").touch()
    assert "in a new directory with `hpcrl collect PLAN -o DATASET`" in hpcrl("report", "full").err
    assert hpcrl("report", "new").err.endswith("make one with `hpcrl collect PLAN -o new`\n")
