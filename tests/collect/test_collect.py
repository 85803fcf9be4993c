from __future__ import annotations

import json
import pickle
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hpcrl
from hpcrl.collect.merge import Collected, collect
from hpcrl.errors import HpcrlError, UsageError
from hpcrl.formats.ledger import Ledger
from hpcrl.formats.plan import read_plan
from hpcrl.formats.record import KINDS, MAGIC, SAMPLE_COLUMNS, RecordWriter, read_frames
from hpcrl.formats.tables import SCHEMAS
from hpcrl.slurm.client import Completed, Slurm
from tests.builders import cells_of, dqn_study, planned, write_record


def no_slurm() -> Slurm:
    """A scheduler that nobody has."""
    return Slurm(lambda arguments, cwd, timeout: Completed(1, "", "no such thing"))


def gathered(dataset: Path, *plans: Path) -> Collected:
    return collect(plans, dataset, no_slurm())


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


def test_attempts_are_told_apart_and_only_the_newest_counts(tmp_path: Path) -> None:
    plan = planned(tmp_path / "p", dqn_study())
    (cell,) = cells_of(plan)
    write_record(plan, cell, "7_0-0", outcome="preempted")
    write_record(plan, cell, "7_0-1")
    done = gathered(tmp_path / "d", plan)
    assert (done.attempts, done.outcomes) == (2, {"completed": 1})
    rows = hpcrl.load(tmp_path / "d")
    assert list(rows["attempt_number"]) == [1, 2]
    assert list(rows["outcome"]) == ["preempted", "completed"]
    assert list(rows["latest"]) == [False, True]


def test_an_attempt_without_a_record_has_its_place_among_the_others(tmp_path: Path) -> None:
    plan = planned(tmp_path / "p", dqn_study(), "sol")
    (cell,) = cells_of(plan)
    ledger = Ledger(plan, create=True)
    for job_id in ("7", "8"):
        claimed = ledger.claim(read_plan(plan).jobs[0].name, [0], "slurm", set())
        assert claimed is not None
        ledger.submitted(claimed.token, job_id)
    ledger.close()
    write_record(plan, cell, "7_0-0", outcome="failed")
    answers = {"sacct": "7_0|FAILED|1:0|9|htc\n8_0|NODE_FAIL|0:0|2|htc\n", "squeue": ""}
    collect([plan], tmp_path / "d", Slurm(lambda arguments, cwd, timeout: Completed(0, answers[arguments[0]], "")))
    rows = hpcrl.load(tmp_path / "d")
    assert list(rows["attempt"]) == ["7_0-0", "8_0"]
    assert list(rows["outcome"]) == ["failed", "node_fail"]
    assert list(rows["latest"]) == [False, True]
    assert rows["reason"][1] == "it left no record; the scheduler says NODE_FAIL, exit code 0:0"


@pytest.mark.parametrize("last_rank", ["completed", None])
def test_ranks_are_one_row_with_the_failure(tmp_path: Path, last_rank: str | None) -> None:
    plan = planned(tmp_path / "p", dqn_study(resources={"tasks": 3, "nodes": 1, "memory": "1G"}), "sol")
    (cell,) = cells_of(plan)
    write_record(plan, cell, rank=0)
    write_record(plan, cell, rank=1, node="n2", outcome="failed", reason="it broke")
    write_record(plan, cell, rank=2, node="n3", outcome=last_rank)  # or it was ended while it waited for rank 1
    gathered(tmp_path / "d", plan)
    (row,) = hpcrl.load(tmp_path / "d").to_dict("records")
    assert (row["outcome"], row["reason"], row["records"]) == ("failed", "rank 1: it broke", 3)
    assert row["cpu_seconds"] == 6


def test_the_first_rank_that_failed_is_the_cause(tmp_path: Path) -> None:
    plan = planned(tmp_path / "p", dqn_study(resources={"tasks": 2, "nodes": 1, "memory": "1G"}), "sol")
    (cell,) = cells_of(plan)
    write_record(plan, cell, rank=0, outcome="failed", reason="Horovod has been shut down", wall_time=9.0)
    write_record(plan, cell, rank=1, outcome="oom", reason="out of memory", wall_time=4.0)
    gathered(tmp_path / "d", plan)
    (row,) = hpcrl.load(tmp_path / "d").to_dict("records")
    assert (row["outcome"], row["reason"]) == ("oom", "rank 1: out of memory")


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
    path = write_record(plan, cell, outcome=None)
    header = next(iter(read_frames(path))).payload
    path.unlink()
    writer = RecordWriter(path)
    writer.write("header", header | {"format": 2})
    for start in (1.0, 3.0):
        columns = {name: np.array([start, start + 1]) for name in SAMPLE_COLUMNS}
        cores = np.array([[start, 10.0], [start + 1, 20.0]], np.float32)
        writer.write("samples", columns | {"core_percent": cores})
    writer.close()
    gathered(tmp_path / "d", plan)
    samples = hpcrl.load(tmp_path / "d", "samples")
    assert [list(each) for each in samples["core_percent"]] == [[1, 10], [2, 20], [3, 10], [4, 20]]
    assert samples["each_gpu_percent"].isna().all()
    assert list(samples["threads"]) == [1, 2, 3, 4]


def test_records_of_another_format(tmp_path: Path) -> None:
    """An older one is read, its missing columns empty; a newer one is refused and named."""
    plan = planned(tmp_path / "p", dqn_study(seeds=2))
    older, newer = cells_of(plan)
    write_record(plan, older)
    path = write_record(plan, newer, outcome=None)
    header = next(iter(read_frames(path))).payload
    path.unlink()
    writer = RecordWriter(path)
    writer.write("header", header | {"format": 3})
    writer.close()
    gathered(tmp_path / "d", plan)
    samples = hpcrl.load(tmp_path / "d", "samples")
    assert set(samples["cell"]) == {older["id"]}
    assert samples["pss"].isna().all()
    (entry,) = json.loads((tmp_path / "d/quarantine.json").read_text())
    assert entry["reason"] == "has format 3, and this hpcrl reads up to 2: collect with the hpcrl that wrote it"


def hostile_frame(kind: str, data: bytes) -> bytes:
    return struct.pack(">BII", KINDS.index(kind), len(data), zlib.crc32(data)) + data


class Pwn:
    def __reduce__(self) -> Any:
        import os

        return (os.system, ("touch pwned",))


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (MAGIC + hostile_frame("header", pickle.dumps({"x": Pwn()})), "a record holds built-in types only"),
        (MAGIC + hostile_frame("header", pickle.dumps({"cell": 3})), "has a header whose 'plan'"),
        (MAGIC + hostile_frame("footer", pickle.dumps({"outcome": "completed"})), "does not begin with a header"),
        (MAGIC, "holds no whole frame"),
        (b"", "is empty"),
        (b"GIF89a", "is not a record"),
    ],
)
def test_bad_records_are_quarantined_and_the_rest_is_merged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes, reason: str
) -> None:
    monkeypatch.chdir(tmp_path)
    plan = planned(tmp_path / "p", dqn_study())
    (cell,) = cells_of(plan)
    write_record(plan, cell)
    bad = plan / "records" / "bad.rec"
    bad.write_bytes(content)
    done = gathered(tmp_path / "d", plan)
    assert done.merged == 1
    (entry,) = done.quarantined
    assert reason in entry["reason"]
    assert entry["file"] == str(bad)
    assert json.loads((tmp_path / "d" / "quarantine.json").read_text()) == [entry]
    assert not (tmp_path / "pwned").exists()
    assert gathered(tmp_path / "d", plan).quarantined == [entry]


def test_a_record_of_another_plan_is_quarantined(tmp_path: Path) -> None:
    plan, other = planned(tmp_path / "p", dqn_study()), planned(tmp_path / "q", dqn_study(seeds=2))
    path = write_record(other, cells_of(other)[1])
    path.rename(plan / "records" / path.name)
    (entry,) = gathered(tmp_path / "d", plan).quarantined
    assert entry["reason"] == "is of a cell that this plan does not have"


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
    with pytest.raises(UsageError, match="dataset format 99, but this hpcrl reads format 2"):
        gathered(tmp_path / "d", plan)


def test_load_says_what_is_wrong(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is not a dataset"):
        hpcrl.load(tmp_path)
    with pytest.raises(UsageError, match="no table 'cell'; did you mean 'cells'"):
        hpcrl.load(tmp_path, "cell")
