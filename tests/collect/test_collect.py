from __future__ import annotations

import json
import os
import pickle
import shutil
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pandas as pd
import polars as pl
import pyarrow.parquet as pq
import pytest

import hpcrl
from hpcrl.collect import merge
from hpcrl.collect.merge import collect
from hpcrl.errors import HpcrlError, UsageError
from hpcrl.formats.ledger import Ledger
from hpcrl.formats.record import SAMPLE_COLUMNS, end_record
from hpcrl.formats.tables import SCHEMAS
from tests.builders import cells_of, dqn_study, granted, planned, ranks_study, write_record
from tests.collect.gathering import gathered, no_slurm, raw_frame, rewritten


def test_two_clusters_become_one_dataset(tmp_path: Path) -> None:
    plans = [planned(tmp_path / name, dqn_study(seeds=2), name) for name in ("sol", "cirrus")]
    for plan in plans:
        for cell in cells_of(plan):
            write_record(plan, cell)
    done = gathered(tmp_path / "d", *plans)
    assert (done.merged, done.attempts, done.outcomes) == (4, 4, {"completed": 4})
    cells = hpcrl.load(tmp_path / "d")
    assert sorted(cells["cluster"]) == ["cirrus", "cirrus", "sol", "sol"]
    # The same cells on both: they differ only in where they ran.
    assert cells["cell"].nunique() == 2
    assert set(cells["partition"].isna() | cells["final_score"].eq(20)) == {True}
    for table in SCHEMAS:
        assert list(hpcrl.load(tmp_path / "d", table).columns) == SCHEMAS[table].names


def test_summary_metrics(tmp_path: Path) -> None:
    plan = planned(tmp_path / "p", dqn_study())
    write_record(plan, cells_of(plan)[0], goal_step=10, goal_time=1.5)
    gathered(tmp_path / "d", plan)
    row = hpcrl.load(tmp_path / "d").iloc[0]
    assert row["machine_cpu_percent"] == 50
    assert row["rss_peak"] == 1e8
    assert row["cpu_seconds"] == 2
    assert row["cpu_utilisation"] == pytest.approx(2 / 4.0)
    assert (row["goal_step"], row["goal_time"], row["training_time"]) == (10, 1.5, 3.0)
    episodes = hpcrl.load(tmp_path / "d", "episodes")
    assert list(episodes["value"]) == [10, 20]
    assert list(episodes["episode"]) == [1, 2]


def test_only_new_and_grown_records_are_read_again(tmp_path: Path) -> None:
    plan = planned(tmp_path / "p", dqn_study(seeds=3))
    first, second, third = cells_of(plan)
    write_record(plan, first)
    cut = write_record(plan, second, outcome=None)
    assert gathered(tmp_path / "d", plan).outcomes == {"completed": 1, "lost": 1}
    again = gathered(tmp_path / "d", plan)
    assert (again.merged, again.unchanged) == (0, 2)
    cut.unlink()
    write_record(plan, second, returns=(1.0, 2.0, 3.0))
    write_record(plan, third)
    done = gathered(tmp_path / "d", plan)
    assert (done.merged, done.unchanged, done.outcomes) == (2, 1, {"completed": 3})
    episodes = hpcrl.load(tmp_path / "d", "episodes")
    assert len(episodes[episodes["cell"] == second["id"]]) == 3
    assert len(hpcrl.load(tmp_path / "d", "samples")) == 2 + 3 + 2


def test_the_same_records_give_the_same_bytes(tmp_path: Path) -> None:
    plan = planned(tmp_path / "p", dqn_study(seeds=3))
    for cell in cells_of(plan):
        write_record(plan, cell)
    for name in ("a", "b"):
        gathered(tmp_path / name, plan)
    files = [sorted((tmp_path / name).rglob("*.parquet")) for name in ("a", "b")]
    assert files[0]
    assert [path.read_bytes() for path in files[0]] == [path.read_bytes() for path in files[1]]


def test_a_check_reports_and_writes_nothing(tmp_path: Path, hpcrl: Any) -> None:
    plan = planned(tmp_path / "p", dqn_study(seeds=2))
    good, bad = cells_of(plan)
    write_record(plan, good)
    shown = hpcrl("collect", plan, "-o", tmp_path / "d", "--check")
    assert (shown.code, shown.out) == (0, "1 record would be merged, 0 unchanged. Nothing was written.\n")
    path = write_record(plan, bad)
    path.write_bytes(path.read_bytes().replace(b"samples", b"s@mples", 1)[:40])
    shown = hpcrl("collect", plan, "-o", tmp_path / "d", "--check")
    assert shown.code == 1
    assert "1 would be quarantined" in shown.out
    assert str(path) in shown.err
    assert not (tmp_path / "d").exists()


def test_each_core_and_gpu_has_its_value(tmp_path: Path) -> None:
    plan = planned(tmp_path / "p", dqn_study())
    (cell,) = cells_of(plan)
    with rewritten(write_record(plan, cell, outcome=None)) as writer:
        for start in (1.0, 3.0):
            rows = np.array([[start], [start + 1]]).repeat(len(SAMPLE_COLUMNS), axis=1)
            cores = np.array([[start, 10.0], [start + 1, 20.0]], np.float32)
            writer.write("samples", {"table": rows, "core_percent": cores})
    gathered(tmp_path / "d", plan)
    samples = hpcrl.load(tmp_path / "d", "samples")
    assert [list(each) for each in samples["core_percent"]] == [[1, 10], [2, 20], [3, 10], [4, 20]]
    assert samples["each_gpu_percent"].isna().all()
    assert list(samples["threads"]) == [1, 2, 3, 4]


def test_cores_that_are_not_always_the_same_are_left_out(tmp_path: Path) -> None:
    plan = planned(tmp_path / "p", dqn_study())
    (cell,) = cells_of(plan)
    row = np.ones((1, len(SAMPLE_COLUMNS)))
    three, two = np.ones((1, 3), np.float32), np.ones((1, 2), np.float32)
    with rewritten(write_record(plan, cell, outcome=None)) as writer:
        writer.write("samples", {"table": row, "core_percent": three, "each_gpu_percent": two, "each_gpu_power": two})
        writer.write("samples", {"table": row, "core_percent": two, "each_gpu_power": two})
    gathered(tmp_path / "d", plan)
    samples = hpcrl.load(tmp_path / "d", "samples")
    assert samples["core_percent"].isna().all()
    assert [list(each) for each in samples["each_gpu_power"]] == [[1, 1], [1, 1]]
    assert list(samples["each_gpu_percent"][0]) == [1, 1]
    assert samples["each_gpu_percent"][1] is None


def test_copies_of_a_plan_are_one(tmp_path: Path) -> None:
    """Of two files for one record the one that goes on from the other counts; what differs is reported."""
    plan = planned(tmp_path / "p", dqn_study(seeds=3))
    same, grown, changed = cells_of(plan)
    write_record(plan, same)
    write_record(plan, grown, outcome=None)
    write_record(plan, changed)
    copy = tmp_path / "copy"
    shutil.copytree(plan, copy)
    (longer,) = copy.glob(f"records/{grown['id']}*")
    tail = raw_frame("footer", pickle.dumps({"facts": '{"outcome":"completed"}'}, 3))
    longer.write_bytes(longer.read_bytes() + tail)
    (other,) = copy.glob(f"records/{changed['id']}*")
    other.unlink()
    write_record(copy, changed, returns=(1.0, 1.0))
    done = gathered(tmp_path / "d", plan, copy, plan)
    assert (done.merged, done.outcomes) == (3, {"completed": 3})
    (entry,) = done.quarantined
    assert f"differs from {copy}" in entry.reason
    again = gathered(tmp_path / "d", copy, plan)
    assert (again.merged, again.unchanged, again.quarantined) == (0, 3, done.quarantined)
    assert gathered(tmp_path / "d", copy).quarantined == []


@pytest.mark.parametrize("keeps_times", [True, False])
def test_an_older_copy_of_a_plan_takes_nothing_back(tmp_path: Path, keeps_times: bool) -> None:
    plan = planned(tmp_path / "p", dqn_study(seeds=2))
    whole, running = (write_record(plan, cell, outcome=None) for cell in cells_of(plan))
    copy = tmp_path / "copy"
    shutil.copytree(plan, copy)
    now = running.stat().st_mtime
    whole.write_bytes(whole.read_bytes() + raw_frame("footer", pickle.dumps({"facts": '{"outcome":"completed"}'}, 3)))
    running.write_bytes(running.read_bytes() + raw_frame("event", pickle.dumps({"facts": '{"text":"on"}'}, 3)))
    for path in (whole, running):
        os.utime(path, (now + 10, now + 10))
    if not keeps_times:
        for path in copy.glob("records/*"):
            os.utime(path, (now + 20, now + 20))
    assert gathered(tmp_path / "d", plan).outcomes == {"completed": 1, "lost": 1}
    for each in (copy, plan):
        done = gathered(tmp_path / "d", each)
        assert (done.merged, done.unchanged, done.noted) == (0, 2, 1)
        assert done.outcomes == {"completed": 1, "lost": 1}


def test_a_footer_in_place_of_a_half_frame_is_read(tmp_path: Path) -> None:
    """The record gets shorter. A damaged one does not stay what it was, either."""
    plan = planned(tmp_path / "p", dqn_study())
    path = write_record(plan, cells_of(plan)[0], outcome=None)
    path.write_bytes(path.read_bytes() + raw_frame("samples", bytes(9000))[:5000])
    assert gathered(tmp_path / "d", plan).outcomes == {"lost": 1}
    assert end_record(path, {"outcome": "oom", "reason": "killed by SIGKILL"})
    assert gathered(tmp_path / "d", plan).outcomes == {"oom": 1}
    path.write_bytes(path.read_bytes()[:10])
    (entry,) = gathered(tmp_path / "d", plan).quarantined
    assert "is not a record" in entry.reason


def test_a_renamed_record_is_not_counted_twice(tmp_path: Path) -> None:
    plan = planned(tmp_path / "p", dqn_study())
    (cell,) = cells_of(plan)
    path = write_record(plan, cell)
    shutil.copy(path, path.with_name(f"old-{path.name}"))
    done = gathered(tmp_path / "d", plan)
    assert done.merged == 1
    assert done.quarantined[0].reason == f"has the content of {path.name}: is it a copy?"


def test_several_processes_give_the_same_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = planned(tmp_path / "p", dqn_study(seeds=5))
    for cell in cells_of(plan):
        write_record(plan, cell)
    monkeypatch.setattr(merge, "BATCH_RECORDS", 2)
    for name, processes in (("one", 1), ("two", 2)):
        collect([plan], tmp_path / name, no_slurm(), processes=processes)
    files = [sorted((tmp_path / name).rglob("*.parquet")) for name in ("one", "two")]
    assert len(files[0]) == 3 * 5 + 1
    assert [path.read_bytes() for path in files[0]] == [path.read_bytes() for path in files[1]]


def test_what_a_reader_should_know_is_noted(tmp_path: Path) -> None:
    plan = planned(tmp_path / "p", dqn_study())
    (cell,) = cells_of(plan)
    with rewritten(write_record(plan, cell)) as writer:
        rows = np.ones((3, len(SAMPLE_COLUMNS)))
        rows[:, SAMPLE_COLUMNS.index("unix_time")] = [100, 100, 160]
        writer.write("samples", {"table": rows})
        writer.write("event", {"text": "a sensor failed: NVMLError"})
        writer.write("footer", {"outcome": "completed", "lost_frames": 2})
    assert gathered(tmp_path / "d", plan).noted == 1
    assert hpcrl.load(tmp_path / "d")["notes"][0].split("; ") == [
        "n1: a sensor failed: NVMLError",
        "n1: 2 frames could not be written and are lost",
        "n1: its wall clock was set by 60.0 s during the attempt",
    ]


def test_a_command_s_values_are_its_episodes(tmp_path: Path) -> None:
    plan = planned(tmp_path / "p", dqn_study())
    (cell,) = cells_of(plan)
    with rewritten(write_record(plan, cell, outcome=None)) as writer:
        for step, name in ((10, "episode_return"), (20, "return"), (30, "loss")):
            writer.write("values", {"entries": [{"time": 1.0, "step": step, "values": {name: float(step)}}]})
        writer.write("footer", {"outcome": "completed"})
    gathered(tmp_path / "d", plan)
    episodes = hpcrl.load(tmp_path / "d", "episodes")
    assert episodes[["kind", "name", "step", "value"]].to_numpy().tolist() == [
        ["value", "return", 10, 10.0],
        ["value", "return", 20, 20.0],
        ["value", "loss", 30, 30.0],
    ]
    assert list(hpcrl.load(tmp_path / "d")["steps"]) == [30]


def test_a_run_that_did_not_end_keeps_its_best_evaluation(tmp_path: Path) -> None:
    plan = planned(tmp_path / "p", dqn_study())
    (cell,) = cells_of(plan)
    rows = [[1.0, 1.0, 30.0, 0.8, 0.0], [2.0, 2.0, 90.0, 1.5, 0.4], [3.0, 3.0, 10.0, 2.9, 1.1]]
    with rewritten(write_record(plan, cell, outcome=None)) as writer:
        writer.write("evaluations", {"table": np.array(rows)})
    gathered(tmp_path / "d", plan)
    assert list(hpcrl.load(tmp_path / "d")["best_score"]) == [90]
    episodes = hpcrl.load(tmp_path / "d", "episodes")
    assert list(episodes["kind"]) == ["evaluation"] * 3
    assert list(episodes["began"]) == pytest.approx([0.8, 1.5, 2.9], abs=2**-21)
    assert list(episodes["began"] * 2**20 % 1) == [0.0] * 3  # times are kept to this part of a second
    assert episodes["seconds"].tolist() == pytest.approx([0.4, 0.7, np.nan], nan_ok=True)


def test_the_last_evaluation_lasts_until_the_record_ends(tmp_path: Path) -> None:
    plan = planned(tmp_path / "p", dqn_study())
    (cell,) = cells_of(plan)
    rows = [(1.0, 1.0, 30.0, 0.8, 0.0), (2.0, 2.0, 90.0, 1.5, 0.4)]
    write_record(plan, cell, evaluations=rows, evaluation_time=0.9)
    gathered(tmp_path / "d", plan)
    episodes = hpcrl.load(tmp_path / "d", "episodes")
    assert episodes["seconds"].tolist() == pytest.approx([np.nan, np.nan, 0.4, 0.5], nan_ok=True)


def test_means_are_over_what_was_read_and_ranks_add_up(tmp_path: Path) -> None:
    plan = planned(tmp_path / "p", ranks_study(2), "sol")
    (cell,) = cells_of(plan)
    slow = {"calibration": {"python": 20.0, "matrix": 5.0, "unix_time": 1.0}}
    fast = {"calibration": {"python": 40.0, "matrix": 4.0, "unix_time": 1.0}}
    for rank, (facts, wall, rss) in enumerate(((slow, 4.0, 3e8), (fast, 8.0, 1e8))):
        table = np.full((3, len(SAMPLE_COLUMNS)), np.nan)
        table[:, :2] = np.arange(3)[:, None]
        table[1:, SAMPLE_COLUMNS.index("machine_cpu_percent")] = [40, 60]
        table[:, SAMPLE_COLUMNS.index("cpu_seconds")] = [0, 1, 2]
        table[:, SAMPLE_COLUMNS.index("rss")] = rss
        with rewritten(write_record(plan, cell, rank=rank), **facts) as writer:
            writer.write("samples", {"table": table})
            writer.write("footer", {"outcome": "completed", "wall_time": wall})
    gathered(tmp_path / "d", plan)
    (row,) = hpcrl.load(tmp_path / "d").to_dict("records")
    assert row["machine_cpu_percent"] == 50
    assert (row["wall_time"], row["cpu_seconds"], row["rss_peak"]) == (8, 4, 3e8)
    assert row["cpu_utilisation"] == 4 / (8 * 2)
    assert (row["calibration_python"], row["calibration_matrix"]) == (20, 4)


def test_a_clock_that_is_behind_is_noted_and_nodes_are_aligned(tmp_path: Path) -> None:
    plan = planned(tmp_path / "p", ranks_study(2, nodes=2), "sol")
    (cell,) = cells_of(plan)
    ledger = Ledger(plan, create=True)
    claimed = ledger.intend(granted(plan, "0"))
    ledger.submitted(claimed.token, "7")
    ledger.close()
    write_record(plan, cell, "7_0-0", rank=0)
    with rewritten(write_record(plan, cell, "7_0-0", rank=1, node="n2"), clock_offset=5.0) as writer:
        writer.write("samples", {"table": np.full((1, len(SAMPLE_COLUMNS)), 100.0)})
        writer.write("footer", {"outcome": "completed"})
    gathered(tmp_path / "d", plan)
    (row,) = hpcrl.load(tmp_path / "d").to_dict("records")
    assert row["clock_offset"] == 5
    assert "n1: its clock is " in row["notes"]
    samples = hpcrl.load(tmp_path / "d", "samples")
    assert list(samples.loc[samples["node"] == "n2", "unix_time"]) == [95]


def test_provenance_has_its_columns(tmp_path: Path) -> None:
    plan = planned(tmp_path / "p", dqn_study())
    (cell,) = cells_of(plan)
    code = {"git_commit": "abc", "git_dirty": True, "modules": "gcc/12:cuda/12"}
    with rewritten(write_record(plan, cell), code=code) as writer:
        writer.write(
            "calibration", {"matrix": 90.0, "memory": 20.0, "python": 50.0, "environment": 1e5, "unix_time": 1.0}
        )
    gathered(tmp_path / "d", plan)
    (row,) = hpcrl.load(tmp_path / "d").to_dict("records")
    assert (row["git_commit"], row["git_dirty"], row["modules"]) == ("abc", True, "gcc/12:cuda/12")
    assert (row["calibration_matrix"], row["calibration_environment"]) == (90, 1e5)


@pytest.mark.parametrize("table", list(SCHEMAS))
def test_tables_open_with_pandas_polars_and_duckdb(tmp_path: Path, table: str) -> None:
    plan = planned(tmp_path / "p", dqn_study(seeds=2))
    for cell in cells_of(plan):
        write_record(plan, cell)
    gathered(tmp_path / "d", plan)
    files = str(tmp_path / "d" / table / "*.parquet")
    rows = len(hpcrl.load(tmp_path / "d", table))
    names = SCHEMAS[table].names
    (file,) = (tmp_path / "d" / table).glob("*.parquet")
    assert list(pd.read_parquet(file).columns) == names
    opened = pl.read_parquet(files)
    assert (opened.height, opened.columns) == (rows, names)
    relation = duckdb.read_parquet(files)
    assert (len(relation.fetchall()), relation.columns) == (rows, names)
    schema = pq.read_schema(file)
    assert {name: schema.field(name).metadata for name in names} == {
        name: SCHEMAS[table].field(name).metadata for name in names
    }
    assert str(schema.field("plan").type).startswith("dictionary")


def test_datasets_that_cannot_be(tmp_path: Path) -> None:
    plan = planned(tmp_path / "p", dqn_study())
    with pytest.raises(UsageError, match="is not a plan directory"):
        gathered(tmp_path / "d", tmp_path)
    with pytest.raises(UsageError, match="exists and is not a dataset"):
        gathered(plan, plan)
    (tmp_path / "file").touch()
    with pytest.raises(HpcrlError, match="cannot be made"):
        gathered(tmp_path / "file" / "d", plan)
    gathered(tmp_path / "d", plan)
    index = tmp_path / "d" / "dataset.json"
    index.write_text(json.dumps(json.loads(index.read_text()) | {"version": 99}))
    with pytest.raises(UsageError, match="dataset format 99, but this hpcrl reads format 4"):
        gathered(tmp_path / "d", plan)


def test_load_says_what_is_wrong(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is not a dataset"):
        hpcrl.load(tmp_path)
    with pytest.raises(UsageError, match="no table 'cell'; did you mean 'cells'"):
        hpcrl.load(tmp_path, "cell")
