from __future__ import annotations

import json
import os
import subprocess
import sys
import tracemalloc
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pynvml
import pytest

import hpcrl
from hpcrl.formats.tables import SCHEMAS
from hpcrl.telemetry import phases, provenance, sampler
from hpcrl.telemetry.metrics import MetricsReader
from hpcrl.telemetry.phases import PhaseClock
from hpcrl.telemetry.processes import ProcessTree


def test_phases_sum_to_the_time_that_the_clock_ran(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(phases, "perf_counter", lambda: now)
    clock = PhaseClock()
    for phase, seconds in [("act", 1.0), ("env_step", 2.0), ("act", 4.0), ("other", 8.0)]:
        now += seconds
        clock.switch(phase)
    now += 16
    assert clock.total() == 31
    assert clock.seconds["setup"] == 1
    assert clock.seconds["act"] == 2 + 8
    assert clock.seconds["other"] == 16
    assert clock.counts["act"] == 2
    assert clock.counts["other"] == 1


def test_a_while_in_another_phase(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(phases, "perf_counter", lambda: now)
    clock = PhaseClock()
    clock.switch("act")
    with clock.aside("tensorboard"):
        now += 3.0
    now += 1.0
    assert (clock.phase, clock.total()) == ("act", 4)
    assert (clock.seconds["act"], clock.seconds["tensorboard"]) == (1, 3)
    assert (clock.counts["act"], clock.counts["tensorboard"]) == (1, 1)


def test_the_cost_of_a_switch_is_measured() -> None:
    assert 1e-8 < phases.switch_cost() < 1e-4


def test_the_dataset_s_page_names_every_phase() -> None:
    assert SCHEMAS["phases"].field("phase").metadata[b"description"].decode() == ", ".join(phases.PHASES)


def test_log_outside_of_a_cell_does_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HPCRL_METRICS", raising=False)
    hpcrl.log(loss=1.0)


def test_log_wants_numbers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HPCRL_METRICS", str(tmp_path / "m"))
    with pytest.raises(TypeError, match=r"hpcrl\.log\(loss='high'\): a reported value must be a number"):
        hpcrl.log(loss="high")  # type: ignore[arg-type]


def test_only_whole_lines_are_read_and_each_once(tmp_path: Path) -> None:
    path = tmp_path / "m"
    reader = MetricsReader(path)
    assert list(reader.read()) == []
    path.write_text('{"a": 1, "step": 2}\n{"b": ')
    assert list(reader.read()) == [{"a": 1, "step": 2, "time": None}]
    with path.open("a") as file:
        file.write('3}\n[1]\n{"c": "x"}\n')
    assert list(reader.read()) == [{"b": 3, "step": None, "time": None}]
    assert reader.malformed == 2
    with path.open("a") as file:
        file.write(f'{{"huge": {10**400}}}\n{"[" * 100_000}\n{{"d": 4, "step": {2**70}, "time": {10**400}}}\n')
    assert list(reader.read()) == [{"d": 4, "step": None, "time": None}]
    assert reader.malformed == 4


def test_a_reported_line_that_never_ends(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    reader = MetricsReader(path)
    with path.open("wb") as file:
        file.write(b'{"a": 1}\n')
        file.truncate(2**28)  # a file with a hole needs no space
    tracemalloc.start()
    found = list(reader.read())
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert ([each["a"] for each in found], reader.malformed) == ([1], 1)
    assert peak < 10e6
    with path.open("ab") as file:
        file.write(b'"its end"}\n{"b": 2}\n{"c"')
    assert [each["b"] for each in reader.read()] == [2]
    with path.open("ab") as file:
        file.write(b": 3}\n")
    assert [each["c"] for each in reader.read()] == [3]
    assert reader.malformed == 1


def test_the_sampler_counts_the_tree_and_ends_with_its_parent(tmp_path: Path) -> None:
    busy = subprocess.Popen(
        [sys.executable, "-c", "import subprocess, sys\nsubprocess.run([sys.executable, '-c', 'while True: pass'])"]
    )
    try:
        sampler = subprocess.Popen(
            [sys.executable, "-m", "hpcrl.telemetry.sampler", str(busy.pid), "0.2"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert sampler.stdout is not None
        assert sampler.stdin is not None
        # On a busy machine a sample may leave the processes out, because reading them took long.
        samples = [json.loads(sampler.stdout.readline()) for _ in range(6)]
        while "processes" not in samples[-1] and len(samples) < 50:
            samples.append(json.loads(sampler.stdout.readline()))
        sampler.stdin.close()
        assert sampler.wait(timeout=10) == 0
    finally:
        subprocess.run(["pkill", "-P", str(busy.pid)], check=False)
        busy.kill()
        busy.wait()
    assert samples[-1]["processes"] == 2
    assert samples[-1]["cpu_seconds"] > samples[0]["cpu_seconds"]
    assert samples[-1]["rss"] > 1e7
    assert 0 <= samples[-1]["machine_cpu_percent"] <= 100
    times = [sample["monotonic"] for sample in samples]
    assert times == sorted(times)


def test_processes_that_live_for_less_than_an_interval_are_counted() -> None:
    # The kernel counts in ticks of 10 ms, and rounds down.
    burn = "import time\nwhile time.process_time() < 0.22: pass"
    program = f"import subprocess, sys\nfor _ in range(3): subprocess.run([sys.executable, '-c', {burn!r}])\nprint('done', flush=True)\ninput()"
    parent = subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    parent.stdout.readline()
    found = ProcessTree(parent.pid).read()
    parent.communicate("\n")
    assert found["processes"] == 1
    assert found["cpu_seconds"] >= 0.6


class Nvml:
    """NVML's calls that choose devices; no driver is at hand where the tests run. Another job has the second GPU."""

    NVMLError = pynvml.NVMLError
    NVMLError_NoPermission = pynvml.NVMLError_NoPermission

    def nvmlDeviceGetCount(self) -> int:
        return 4

    def nvmlDeviceGetHandleByIndex(self, index: int) -> str:
        if index == 1:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NO_PERMISSION)
        return f"gpu{index}"

    def nvmlDeviceGetUUID(self, gpu: str) -> str:
        return {"gpu0": "GPU-ab1", "gpu2": "GPU-ab2", "gpu3": "GPU-cd3"}[gpu]

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> str:
        if uuid != "MIG-7":
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_FOUND)
        return "slice7"


@pytest.mark.parametrize(
    ("variable", "expected"),
    [
        (None, {"0": "gpu0", "1": "gpu2", "2": "gpu3"}),
        ("", {}),
        ("2, 0", {"2": "gpu3", "0": "gpu0"}),
        ("GPU-ab2,MIG-7", {"GPU-ab2": "gpu2", "MIG-7": "slice7"}),
        ("GPU-c", {"GPU-c": "gpu3"}),  # the beginning of a UUID, as CUDA allows
        ("GPU-ab", {}),  # of two
        ("0,9,1", {"0": "gpu0"}),  # what is no GPU hides all that follow
        ("0,-1,1", {"0": "gpu0"}),
        ("MIG-8,0", {}),
    ],
)
def test_gpus_are_seen_as_cuda_sees_them(
    monkeypatch: pytest.MonkeyPatch, variable: str | None, expected: dict[str, str]
) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if variable is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", variable)
    assert provenance.gpu_handles(Nvml()) == expected


@pytest.mark.parametrize(
    ("error", "noted"),
    [
        (pynvml.NVML_ERROR_LIBRARY_NOT_FOUND, []),
        (pynvml.NVML_ERROR_DRIVER_NOT_LOADED, []),
        (pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH, ["RM has detected an NVML/RM version mismatch."]),
    ],
)
def test_a_driver_that_fails_is_noted_and_none_is_not(
    monkeypatch: pytest.MonkeyPatch, error: int, noted: list[str]
) -> None:
    def fails() -> None:
        raise pynvml.NVMLError(error)

    monkeypatch.setattr(pynvml, "nvmlInit", fails)
    found: list[str] = []
    own = sampler.Own(os.getpid(), 1.0)
    assert sampler.Gpus(own, lambda each: found.append(str(each))).read() == {}
    assert found == noted


def test_gpus_are_read_through_nvml(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two GPUs of the imagination, behind the real module's names: no driver is at hand where the tests run."""
    turn = 0

    def fake(name: str, value: Any) -> None:
        monkeypatch.setattr(pynvml, name, value)  # fails where the module has no such name

    fake("nvmlInit", lambda: None)
    fake("nvmlDeviceGetCount", lambda: 2)
    fake("nvmlDeviceGetHandleByIndex", lambda index: index)
    fake("nvmlDeviceGetUtilizationRates", lambda gpu: SimpleNamespace(gpu=20 + 40 * gpu))

    def memory(gpu: int, version: int | None = None) -> SimpleNamespace:
        """As a driver before 510 on the second GPU: no second version of the call."""
        if version and gpu:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_FUNCTION_NOT_FOUND)
        return SimpleNamespace(used=1000 * (gpu + 1) if version or gpu else 1700)

    fake("nvmlDeviceGetMemoryInfo", memory)
    fake("nvmlDeviceGetPowerUsage", lambda gpu: 100_000 + 50_000 * gpu)  # milliwatts
    fake(
        "nvmlDeviceGetTotalEnergyConsumption", lambda gpu: 7_000_000 + 1000 * turn
    )  # millijoules since the driver's start
    fake("nvmlDeviceGetTemperature", lambda gpu, which: 50 + gpu)
    fake("nvmlDeviceGetCurrentClocksThrottleReasons", lambda gpu: 1 << gpu)
    own = SimpleNamespace(tree=SimpleNamespace(processes=lambda: {11, 12}))
    running = [
        SimpleNamespace(pid=11, usedGpuMemory=300),
        SimpleNamespace(pid=99, usedGpuMemory=500),
        SimpleNamespace(pid=12, usedGpuMemory=None),
    ]
    fake("nvmlDeviceGetComputeRunningProcesses", lambda gpu: running)

    def fails(error: Any) -> Any:
        def sensor(gpu: int, which: int) -> float:
            raise error

        return sensor

    fake("nvmlDeviceGetClockInfo", fails(pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)))  # as a MIG slice does
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    noted: list[str] = []
    gpus = sampler.Gpus(own, lambda error: noted.append(str(error)))
    first = gpus.read()
    assert first == {
        "gpu_percent": 40, "gpu_memory": 3000, "gpu_own_memory": 600, "gpu_power": 250, "gpu_energy": 0, "gpu_temperature": 51,
        "gpu_throttle": 3, "each_gpu_percent": [20, 60], "each_gpu_memory": [1000, 2000], "each_gpu_power": [100, 150],
    }  # fmt: skip
    assert not noted
    turn = 5
    fake("nvmlDeviceGetClockInfo", fails(pynvml.NVMLError(pynvml.NVML_ERROR_GPU_IS_LOST)))
    assert gpus.read() == first | {"gpu_energy": 10}  # joules of both since the first reading
    assert noted == ["GPU is lost"]


def test_hardware_and_software_are_plain_values() -> None:
    assert json.loads(json.dumps(provenance.hardware()))["cores_allowed"] >= 1
    assert "numpy" in provenance.software()


def test_a_failing_sensor_is_noted_once_and_the_rest_goes_on(tmp_path: Path) -> None:
    program = (
        "import sys\n"
        "from hpcrl.telemetry import sampler\n"
        "def broken(self): raise OSError('no such sensor')\n"
        "sampler.Machine.read = broken\n"
        "sampler.main(int(sys.argv[1]), 0.05)\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", program, str(os.getpid())], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    lines = [json.loads(process.stdout.readline()) for _ in range(4)]
    # A process tree that takes long to read is not read for every sample, but again and again.
    while sum("rss" in line for line in lines) < 3 and len(lines) < 500:
        lines.append(json.loads(process.stdout.readline()))
    process.communicate()
    assert lines[0] == {"event": "a sensor failed: OSError: no such sensor"}
    assert not any("event" in line or "machine_load" in line for line in lines[1:])
    read = [line["rss"] for line in lines if "rss" in line]
    assert len(read) >= 3
    assert min(read) > 1e7


def test_the_sampler_says_what_it_costs_and_reads_every_core(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "hpcrl.telemetry.sampler", str(os.getpid()), "0.05"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout is not None
    first, *_, last = [json.loads(process.stdout.readline()) for _ in range(10)]
    process.communicate()
    assert len(last["core_percent"]) == psutil.cpu_count()
    assert last["machine_cpu_percent"] == pytest.approx(sum(last["core_percent"]) / len(last["core_percent"]))
    assert first["sampler_cpu"] < last["sampler_cpu"] < first["sampler_cpu"] + 0.5
    assert last["sampler_memory"] < 40e6
    # Shared memory costs more to read, and is read every ten seconds.
    assert "pss" in first
    assert "pss" not in last


def test_the_commit_and_changes_of_the_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def git(*arguments: str) -> str:
        identity = ["-c", "user.name=n", "-c", "user.email=e"]
        return subprocess.run(["git", *identity, *arguments], check=True, capture_output=True, text=True).stdout.strip()

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    monkeypatch.setenv("LOADEDMODULES", "gcc/12:cuda/12")
    assert provenance.code() == {"git_commit": None, "git_dirty": None, "modules": "gcc/12:cuda/12"}
    git("init", "-q")
    (tmp_path / "train.py").write_text("pass")
    git("add", "train.py")
    git("commit", "-q", "-m", "first")
    assert provenance.code()["git_commit"] == git("rev-parse", "HEAD")
    assert provenance.code()["git_dirty"] is False
    (tmp_path / "plan").mkdir()  # what stands beside the code changes nothing of it
    (tmp_path / "plan" / "x").touch()
    assert provenance.code()["git_dirty"] is False
    (tmp_path / "train.py").write_text("raise SystemExit")
    assert provenance.code()["git_dirty"] is True


def test_without_git_nothing_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    assert provenance.code()["git_commit"] is None
