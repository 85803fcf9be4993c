"""Records of older and newer formats."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hpcrl
from hpcrl.formats.record import FORMAT, MAGIC, SAMPLE_COLUMNS, read_frames
from tests.builders import cells_of, dqn_study, planned, write_record
from tests.collect.gathering import gathered, raw_frame, rewritten


@pytest.mark.parametrize("version", [1, 2])
def test_an_older_format_is_migrated(tmp_path: Path, version: int) -> None:
    """It had nested values, an array for each column, and in version 1 fewer columns of samples."""
    plan = planned(tmp_path / "p", dqn_study())
    (cell,) = cells_of(plan)
    path = write_record(plan, cell)
    header = next(iter(read_frames(path))).payload | {"format": version}
    names = THIRD_SAMPLES if version == 2 else ("time", "unix_time", *FIRST_SAMPLES)

    def columns(*names: str) -> dict[str, Any]:
        arrays = {name: np.array([3.0, 4.0]) for name in names}
        return {name: ("nd", "<f8", array.shape, array.tobytes()) for name, array in arrays.items()}

    cores = np.array([[1, 10], [2, 20]], np.float32)
    lists = {"core_percent": ("nd", "<f4", cores.shape, cores.tobytes())} if version == 2 else {}
    frames = {
        "header": header,
        "samples": columns(*names) | lists,
        "episodes": columns("step", "time", "value", "length"),
        "values": {"entries": [{"time": 1.0, "step": 7, "values": {"loss": 0.5}}]},
        "phases": {"seconds": {"act": 2.0}, "counts": {"act": 9}},
        "footer": {"outcome": "completed", "wall_time": 4.0},
    }
    path.write_bytes(MAGIC + b"".join(raw_frame(kind, pickle.dumps(payload)) for kind, payload in frames.items()))
    assert gathered(tmp_path / "d", plan).merged == 1
    samples = hpcrl.load(tmp_path / "d", "samples")
    assert list(samples["rss"]) == [3, 4]
    assert samples["pss"].isna().all() == (version == 1)
    assert samples["memory_peak"].isna().all()
    assert samples["core_percent"].isna().all() == (version == 1)
    assert list(hpcrl.load(tmp_path / "d", "episodes")["value"]) == [3, 4, 0.5]
    assert list(hpcrl.load(tmp_path / "d", "phases")["count"]) == [9]
    assert hpcrl.load(tmp_path / "d")["outcome"][0] == "completed"


def test_samples_of_the_third_format_lack_the_last_columns(tmp_path: Path) -> None:
    plan = planned(tmp_path / "p", dqn_study())
    (cell,) = cells_of(plan)
    row = np.arange(float(len(THIRD_SAMPLES)))[None]
    with rewritten(write_record(plan, cell, outcome=None), format=3) as writer:
        writer.write("samples", {"table": row})
        writer.write("samples", {"table": row + 1})
    gathered(tmp_path / "d", plan)
    samples = hpcrl.load(tmp_path / "d", "samples")
    assert list(samples["time"]) == [0, 1]
    assert list(samples["gpu_throttle"]) == [len(THIRD_SAMPLES) - 1, len(THIRD_SAMPLES)]
    assert samples["memory_peak"].isna().all()


def test_evaluations_of_the_fourth_format_lack_begin_and_duration(tmp_path: Path) -> None:
    plan = planned(tmp_path / "p", dqn_study())
    (cell,) = cells_of(plan)
    with rewritten(write_record(plan, cell), format=4) as writer:
        writer.write("evaluations", {"table": np.array([[10.0, 2.0, 30.0], [20.0, 3.0, 90.0]])})
        writer.write("footer", {"outcome": "completed", "wall_time": 4.0, "evaluation_time": 1.0})
    gathered(tmp_path / "d", plan)
    evaluations = hpcrl.load(tmp_path / "d", "episodes")
    assert evaluations[["kind", "time", "value"]].to_numpy().tolist() == [["evaluation", 2, 30], ["evaluation", 3, 90]]
    assert evaluations[["began", "seconds"]].isna().all().all()


THIRD_SAMPLES = SAMPLE_COLUMNS[: SAMPLE_COLUMNS.index("memory_peak")]
FIRST_SAMPLES = (
    "machine_cpu_percent", "machine_memory_percent", "cpu_seconds", "rss", "processes",
    "gpu_percent", "gpu_memory", "gpu_power", "gpu_energy",
)  # fmt: skip


def test_a_newer_format_is_refused_and_named(tmp_path: Path) -> None:
    plan = planned(tmp_path / "p", dqn_study())
    (cell,) = cells_of(plan)
    with rewritten(write_record(plan, cell), format=FORMAT + 1):
        pass
    gathered(tmp_path / "d", plan)
    (entry,) = json.loads((tmp_path / "d/quarantine.json").read_text())
    assert entry["reason"] == (
        f"has format {FORMAT + 1}, but this hpcrl reads formats up to {FORMAT}: collect with the hpcrl that wrote it"
    )
