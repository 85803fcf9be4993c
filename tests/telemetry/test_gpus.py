"""Cells on GPUs through the whole pipe, with a stand-in for NVIDIA's library: no driver is at hand where the tests run."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pandas as pd
import pytest

import hpcrl
from hpcrl.collect.merge import collect
from hpcrl.report.write import write_report
from tests.builders import command_study, planned, run_task
from tests.collect.gathering import no_slurm

pytestmark = pytest.mark.slow
MIB = 2**20


def dataset_of(tmp_path: Path, nvml: Path, visible: str, gpus: int = 1) -> Path:
    study = command_study(
        [sys.executable, "-c", "import hpcrl, time; hpcrl.log(loss=1, step=500); time.sleep(2)"],
        environment="torch",
        resources={"gpus": gpus, "gpu_type": "a100", "memory": "1G", "time": "00:10:00"},
    )
    plan = planned(tmp_path / "p", study, "sol")
    done = run_task(plan, "mine-torch-cuda-1", LD_LIBRARY_PATH=str(nvml), CUDA_VISIBLE_DEVICES=visible)
    assert done.returncode == 0, done
    collect([plan], tmp_path / "d", no_slurm())
    return tmp_path / "d"


def test_two_gpus(tmp_path: Path, nvml: Path) -> None:
    dataset = dataset_of(tmp_path, nvml, "GPU-2,0", gpus=2)  # the second one first
    (row,) = hpcrl.load(dataset).to_dict("records")
    hardware = json.loads(row["hardware"])
    assert (hardware["gpus"], hardware["gpu_driver"]) == (["NVIDIA A100-SXM4-80GB"] * 2, "550.0-stand-in")
    assert (row["gpu_percent"], row["gpu_memory_peak"]) == (40, 3000 * MIB)
    samples = hpcrl.load(dataset, "samples").dropna(subset="gpu_power")  # the first ones look at memory alone
    last = samples.iloc[-1]
    assert (last["gpu_power"], last["gpu_temperature"], last["gpu_clock"], last["gpu_throttle"]) == (250, 51, 1250, 3)
    assert last["gpu_own_memory"] == 600 * MIB  # of the cell's process on both, not of another's
    assert list(last["each_gpu_percent"]) == [60, 20]
    assert list(last["each_gpu_power"]) == [150, 100]
    first = samples.iloc[0]
    assert last["gpu_energy"] - first["gpu_energy"] == pytest.approx(250 * (last["time"] - first["time"]), abs=25)
    assert first["gpu_energy"] > 0  # counted from the sampler's start, not from its first reading
    assert row["energy"] == last["gpu_energy"]
    text = write_report(dataset, None, tmp_path / "r").html.read_text()
    assert "NVIDIA A100-SXM4-80GB, NVIDIA A100-SXM4-80GB" in text
    assert "GPU driver 550.0-stand-in" in text
    assert row["steps"] == 500  # what the command reported
    assert "energy of the GPUs per 1,000 steps (J)" in text
    assert ">GPU against time</h4>" in text


def test_a_cell_has_no_more_gpus_than_it_asks_for(tmp_path: Path, nvml: Path) -> None:
    (row,) = hpcrl.load(dataset_of(tmp_path, nvml, "1,0")).to_dict("records")
    assert len(json.loads(row["hardware"])["gpus"]) == 1
    assert (row["gpu_percent"], row["gpu_memory_peak"]) == (60, 2000 * MIB)  # of the first one named


def test_a_slice_of_a_gpu(tmp_path: Path, nvml: Path) -> None:
    dataset = dataset_of(tmp_path, nvml, "MIG-77777777-cccc")
    (row,) = hpcrl.load(dataset).to_dict("records")
    assert json.loads(row["hardware"])["gpus"] == ["NVIDIA A100-SXM4-80GB MIG 1g.10gb"]
    last = hpcrl.load(dataset, "samples").iloc[-1]
    assert (last["gpu_memory"], last["gpu_own_memory"], last["gpu_clock"]) == (3000 * MIB, 300 * MIB, 1400)
    assert last[["gpu_percent", "gpu_power", "gpu_energy"]].isna().all()  # NVML has none of a slice
    assert pd.isna(row["notes"])  # and says so by its absence
