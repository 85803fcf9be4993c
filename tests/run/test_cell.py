"""Cells run for real, in a process of their own, from the plan's worker.zip."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hpcrl.collect.reading import RecordData, read_record
from hpcrl.formats.attempts import Start, read_attempts, take_attempt
from hpcrl.formats.ledger import Ledger
from hpcrl.formats.plan import read_cells
from hpcrl.run.allocation import Allocation
from hpcrl.run.cell import end_killed_rank, is_extra
from tests.builders import cells_of, command_study, dqn_study, granted, planned, ranks_study, run_task, write_record
from tests.spec.test_rendering import NASTY

JOB = "short-numpy-cpu-1"


def only_record(plan: Path) -> RecordData:
    (path,) = (plan / "records").iterdir()
    return read_record(path)


def test_training_is_recorded(tmp_path: Path) -> None:
    plan = planned(tmp_path / "p", dqn_study())
    done = run_task(plan, JOB)
    assert done.returncode == 0, done.stderr
    data = only_record(plan)
    assert data.footer is not None
    assert data.footer["outcome"] == "completed"
    assert data.footer["steps"] == 1500
    assert data.footer["goal_step"] == 500
    assert data.footer["updates"] == 2 * 128  # at steps 1024 and 1280
    assert data.column("episodes", "length").sum() <= 1500
    assert list(data.column("evaluations", "step")) == [500, 1000, 1500]
    assert data.header["software"]["numpy"] == np.__version__
    assert len(data.column("samples", "time")) >= 1
    assert data.column("samples", "rss").max() > 1e7
    assert data.phases is not None
    total = sum(seconds for seconds, _ in data.phases.values())
    assert total == pytest.approx(data.footer["wall_time"], rel=0.02)
    assert 0 < data.footer["phase_time"] < data.footer["wall_time"]


def test_the_calibration_is_recorded_and_is_no_part_of_what_the_cell_used(tmp_path: Path) -> None:
    plan = planned(tmp_path / "p", dqn_study(calibration_seconds=4))
    begun = time.time()
    assert run_task(plan, JOB).returncode == 0
    data = only_record(plan)
    assert data.footer is not None
    assert data.header["calibration"]["python"] > 0
    # What the cell is said to have taken begins when the four seconds are over, however slow the machine is.
    assert data.header["started"] - begun > 3
    assert data.footer["wall_time"] < time.time() - begun - 3
    assert 0 < data.column("samples", "cpu_seconds").max() < 1.5 * data.footer["wall_time"] + 0.5


def test_the_same_seed_gives_the_same_episodes(tmp_path: Path) -> None:
    runs = []
    for name in ("a", "b"):
        plan = planned(tmp_path / name, dqn_study())
        run_task(plan, JOB)
        runs.append(only_record(plan).column("episodes", "value"))
    np.testing.assert_array_equal(*runs)


def test_threads_come_from_the_cell_and_not_from_the_machine(tmp_path: Path) -> None:
    code = "import hpcrl, os; hpcrl.log(threads=int(os.environ['OMP_NUM_THREADS']), cores=len(os.sched_getaffinity(0)))"
    plan = planned(tmp_path / "p", command_study([sys.executable, "-c", code]))
    assert run_task(plan, "mine-numpy-cpu-1", OMP_NUM_THREADS="64").returncode == 0
    assert only_record(plan).values[0]["values"] == {"threads": 1.0, "cores": 1.0}


def test_a_command_reports_values(tmp_path: Path) -> None:
    code = "import hpcrl, json, os, sys; hpcrl.log(episode_return=float(sys.argv[1]), step=3); open(os.environ['HPCRL_METRICS'], 'a').write(json.dumps({'loss': 0.5}) + '\\nnot json\\n')"
    plan = planned(tmp_path / "p", command_study([sys.executable, "-c", code, "{variant}"], axes={"variant": [1.5]}))
    assert run_task(plan, "mine-numpy-cpu-1").returncode == 0
    data = only_record(plan)
    assert [(each["step"], each["values"]) for each in data.values] == [
        (3, {"episode_return": 1.5}),
        (None, {"loss": 0.5}),
    ]
    assert data.footer is not None
    assert data.footer["malformed_values"] == 1


ECHO = "import os, sys; open(sys.argv[1], 'wb').write(os.fsencode(sys.argv[2]) + b'|' + os.environb[b'VALUE'] + b'|' + os.environb[b'HPCRL_CELL_VARIANT'])"


@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    value=st.sampled_from(NASTY[:-4])
    | st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1, max_size=30)
)
def test_axis_values_arrive_unchanged_through_the_script(tmp_path_factory: pytest.TempPathFactory, value: str) -> None:
    base = tmp_path_factory.mktemp("it's a $(plan)")
    out = base / "out"
    study = command_study([sys.executable, "-c", ECHO, str(out), "{variant}"], axes={"variant": [value]})
    study["workload"]["env"] = {"VALUE": "{variant}"}
    plan = planned(base / "plan", study)
    environment = base / "environments"
    (script,) = (plan / "scripts").glob("mine-numpy*")
    key = script.read_text().partition('HPCRL_ENVIRONMENTS:-$environments}"/')[2].split()[0]
    (environment / key / "bin").mkdir(parents=True)
    (environment / key / "bin/python").symlink_to(sys.executable)
    (environment / key / "hpcrl-environment.json").write_text(json.dumps({"key": key}))
    # The interpreter of the tests, by its real path, so that it finds its packages.
    (environment / key / "bin/python").unlink()
    (environment / key / "bin/python").write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    (environment / key / "bin/python").chmod(0o755)
    done = subprocess.run(
        ["bash", f"scripts/{script.name}"],
        cwd=plan,
        env=os.environ | {"HPCRL_ENVIRONMENTS": str(environment)},
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert out.read_bytes().decode() == "|".join([value] * 3)


def test_what_outlives_a_command_is_its_own_and_is_ended(tmp_path: Path) -> None:
    """A daemon, double-forked: it works while the command still runs, and would go on after it."""
    work = "import time; t = time.process_time() + 0.5\nwhile time.process_time() < t: pass\n"
    daemon = f"{work}open({str(tmp_path / 'worked')!r}, 'w').close(); time.sleep(600)"
    code = f"import os, pathlib, subprocess, sys, time; subprocess.Popen(['sh', '-c', '{{}} -c \"$0\" & exit'.format(sys.executable), {daemon!r}], start_new_session=True)\nwhile not pathlib.Path({str(tmp_path / 'worked')!r}).exists(): time.sleep(0.05)"
    plan = planned(tmp_path / "p", command_study([sys.executable, "-c", code]))
    assert run_task(plan, "mine-numpy-cpu-1").returncode == 0
    data = only_record(plan)
    assert data.footer is not None
    assert data.footer["own_cpu_seconds"] > 0.5
    assert data.footer["own_context_switches"] > 0
    assert [text for text in data.events if "outlived" in text] == [
        f"1 process outlived the workload and had to be ended ({Path(sys.executable).name[:15]})"
    ]


def test_hpcrl_s_own_process_is_none_of_a_command_s(tmp_path: Path) -> None:
    plan = planned(tmp_path / "p", command_study(["sleep", "2"]))
    assert run_task(plan, "mine-numpy-cpu-1").returncode == 0
    data = only_record(plan)
    assert data.footer is not None
    assert data.footer["own_cpu_seconds"] < 0.05
    # On a busy machine the sampler leaves the processes out of a sample, so as not to cost more than its share.
    cpu, processes, threads = (data.column("samples", name) for name in ("cpu_seconds", "processes", "threads"))
    assert np.isfinite(cpu).sum() >= 2
    assert np.nanmax(cpu) < 0.05
    assert np.nanmax(processes) == np.nanmax(threads) == 1
    assert data.column("samples", "memory_peak").max() < 4 * 2**20


@pytest.mark.parametrize(
    ("command", "outcome", "reason"),
    [
        (["false"], "failed", "false ended with exit code 1"),
        (["/nonexistent/program"], "failed", "cannot be started: No such file"),
        (["sh", "-c", "kill -9 $$"], "failed", "was ended by SIGKILL"),
        (["sh", "-c", "kill -40 $$"], "failed", "was ended by signal 40"),
        (["sh", "-c", "kill -11 $$"], "failed", "was ended by SIGSEGV"),
    ],
)
def test_a_command_that_fails(tmp_path: Path, command: list[str], outcome: str, reason: str) -> None:
    plan = planned(tmp_path / "p", command_study(command))
    assert run_task(plan, "mine-numpy-cpu-1").returncode == 1
    footer = only_record(plan).footer
    assert footer is not None
    assert footer["outcome"] == outcome
    assert reason in footer["reason"]


def test_a_command_that_the_kernel_ends_for_its_memory(tmp_path: Path) -> None:
    """In a control group with little memory; a program that ends itself by the same signal is not taken for one."""
    place = Path("/sys/fs/cgroup/memory" if Path("/sys/fs/cgroup/memory").is_dir() else "/sys/fs/cgroup")
    group = place / f"hpcrl-test-{os.getpid()}"
    try:
        group.mkdir()
        (group / ("memory.limit_in_bytes" if place.name == "memory" else "memory.max")).write_text("50000000")
    except OSError:
        pytest.skip("this user may not limit the memory of a control group")
    try:
        program = f"""
import os, time
time.sleep(1)
open("{group}/cgroup.procs", "w").write(str(os.getpid()))
kept = bytearray(500_000_000)
"""
        plan = planned(tmp_path / "p", command_study([sys.executable, "-c", program]))
        assert run_task(plan, "mine-numpy-cpu-1").returncode == 1
        footer = only_record(plan).footer
        assert footer is not None
        assert footer["outcome"] == "oom"
        assert "the kernel was out of memory" in footer["reason"]
    finally:
        group.rmdir()


def test_a_record_names_the_submission_that_granted_its_attempt(tmp_path: Path) -> None:
    plan = planned(tmp_path / "p", command_study(["true"]))
    ledger = Ledger(plan, create=True)
    token = ledger.intend(granted(plan, "0")).token
    ledger.close()
    assert run_task(plan, "mine-numpy-cpu-1", 0, "--submission", token).returncode == 0
    assert only_record(plan).header["submission"] == token


def edited(plan: Path, **workload: object) -> Path:
    """A plan whose workload `hpcrl plan` would refuse: the node checks it once more."""
    manifest = json.loads((plan / "plan.json").read_text())
    manifest["workload"] |= workload
    (plan / "plan.json").write_text(json.dumps(manifest))
    return plan


@pytest.mark.parametrize(
    ("hyperparameters", "reason"),
    [
        ({"learning_rat": 1}, "no hyperparameter 'learning_rat'; did you mean 'learning_rate'?"),
        (
            {"batch_size": "big"},
            "batch_size: expected a whole number from 1 to 1,000,000,000,000, got 'big' (default 64)",
        ),
        ({"loss": "l1"}, "loss: no loss 'l1'; there are: huber, mse"),
        ({"defaults": "mine"}, "defaults: no defaults 'mine'; there are: aligned, framework"),
    ],
)
def test_wrong_hyperparameters(tmp_path: Path, hyperparameters: dict[str, object], reason: str) -> None:
    plan = edited(planned(tmp_path / "p", dqn_study()), hyperparameters=hyperparameters)
    done = run_task(plan, JOB)
    assert done.returncode == 1
    assert reason in done.stderr
    assert "Traceback" not in done.stderr


def test_a_gpu_cell_never_runs_on_the_cpu(tmp_path: Path) -> None:
    study = dqn_study(
        axes={"framework": ["torch"]}, resources={"gpus": 1, "gpu_type": "a100", "memory": "1G", "time": "00:10:00"}
    )
    plan = planned(tmp_path / "p", study, "sol")
    done = run_task(plan, "short-torch-cuda-1", CUDA_VISIBLE_DEVICES="")
    assert done.returncode == 1
    assert "this cell asks for 1 GPUs, but no NVIDIA GPU is visible here: run it on a node with GPUs" in done.stderr
    footer = only_record(plan).footer
    assert footer is not None
    assert footer["outcome"] == "failed"


def test_a_cell_without_gpus_sees_none(tmp_path: Path) -> None:
    code = "import os, sys; print([os.environ[name] for name in ('CUDA_VISIBLE_DEVICES', 'CUDA_DEVICE_ORDER')])"
    plan = planned(tmp_path / "p", command_study([sys.executable, "-c", code]))
    done = run_task(plan, "mine-numpy-cpu-1", CUDA_VISIBLE_DEVICES="0,1")
    assert "['', 'PCI_BUS_ID']" in done.stdout, done


def test_ranks_without_a_parallelism_are_refused(tmp_path: Path) -> None:
    plan = planned(tmp_path / "p", dqn_study())
    done = run_task(plan, JOB, 0, "--ranks", "2")
    assert done.returncode == 1
    assert "this cell has 2 ranks, but `parallelism` is none" in done.stderr


def test_one_rank_does_not_pass_for_two(tmp_path: Path) -> None:
    study = dqn_study(axes={"framework": ["torch"], "parallelism": ["horovod"]})
    done = run_task(planned(tmp_path / "p", study, "sol"), "short-torch-cpu-horovod-1")
    assert done.returncode == 1
    assert "expected 2 ranks, got 1: start all of them with --ranks" in done.stderr


def test_an_environment_that_is_not_the_locked_one(tmp_path: Path) -> None:
    plan = planned(tmp_path / "p", dqn_study())
    (tmp_path / "hpcrl-environment.json").write_text(json.dumps({"key": "numpy-cpu-0000"}))
    done = run_task(plan, JOB, HPCRL_ENV=str(tmp_path))
    assert done.returncode == 2
    assert "(the plan's lock), got numpy-cpu-0000: run" in done.stderr


def test_a_framework_whose_environment_is_missing(tmp_path: Path) -> None:
    plan = planned(tmp_path / "p", dqn_study(axes={"framework": ["mxnet"]}))
    done = run_task(plan, "short-mxnet-cpu-1")
    assert done.returncode == 1
    assert (
        "mxnet: mxnet is not installed in this environment: run the cell in its own environment (hpcrl env create)"
        in done.stderr
    )


def test_an_environment_that_does_not_exist(tmp_path: Path) -> None:
    plan = edited(planned(tmp_path / "p", dqn_study()), environment="CartPoll-v1")
    done = run_task(plan, JOB)
    assert done.returncode == 1
    assert "CartPoll" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_framework_that_is_not_installed(tmp_path: Path) -> None:
    plan = planned(tmp_path / "p", dqn_study(axes={"framework": ["torch"]}))
    done = run_task(plan, "short-torch-cpu-1")
    assert done.returncode == 1
    assert "torch is not installed in this environment" in done.stderr


def test_a_diverged_run_keeps_what_it_recorded(tmp_path: Path) -> None:
    study = dqn_study()
    study["workload"]["hyperparameters"] |= {
        "learning_rate": 1e30,
        "train_interval": 10,
        "learning_starts": 100,
        "max_gradient_norm": 0,
    }
    plan = planned(tmp_path / "p", study)
    assert run_task(plan, JOB).returncode == 1
    data = only_record(plan)
    assert data.footer is not None
    assert data.footer["outcome"] == "diverged"
    assert len(data.column("episodes", "step")) > 5


def test_a_framework_that_runs_out_of_memory(tmp_path: Path) -> None:
    (tmp_path / "greedy.py").write_text(
        "import gymnasium\nfrom gymnasium.envs.classic_control.cartpole import CartPoleEnv\n\n"
        "class Greedy(CartPoleEnv):\n    def step(self, action):\n"
        "        raise RuntimeError('CUDA out of memory. Tried to allocate 20.00 GiB')\n\n"
        "gymnasium.register('Greedy-v0', Greedy)\n"
    )
    study = dqn_study()
    study["workload"]["environment"] = "greedy:Greedy-v0"
    plan = planned(tmp_path / "p", study)
    assert run_task(plan, JOB, PYTHONPATH=f"{plan / 'worker.zip'}:{tmp_path}").returncode == 1
    footer = only_record(plan).footer
    assert footer is not None
    assert (footer["outcome"], footer["reason"][:32]) == ("oom", "RuntimeError: CUDA out of memory")


def start(plan: Path, job: str, **variables: str) -> subprocess.Popen[str]:
    environment = os.environ | {"PYTHONPATH": str(plan / "worker.zip")} | variables
    arguments = [sys.executable, "-m", "hpcrl.run", str(plan), "--job", job, "--interval", "0.1"]
    return subprocess.Popen(arguments, env=environment, stderr=subprocess.PIPE, text=True)


def wait_for_progress(plan: Path) -> None:
    import time

    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        for path in (plan / "records").glob("*.rec"):
            if len(read_record(path).column("episodes", "step")):
                return
        time.sleep(0.1)
    raise AssertionError("no progress")


# The training waits for its environments most of the time.
TOGETHER = {"environments": 4, "step_latency": 0.002, "updates": 1, "total_steps": 8_000}


@pytest.mark.parametrize(
    "stepping",
    [
        {},
        {**TOGETHER, "stepping": "processes"},
        {**TOGETHER, "stepping": "pipes", "workers": "environments"},
    ],
)
def test_term_is_checkpointed_and_the_next_attempt_goes_on(tmp_path: Path, stepping: dict[str, Any]) -> None:
    study = dqn_study()
    study["workload"]["hyperparameters"] |= {"total_steps": 40_000, "hidden": [128, 128], "evaluation_interval": 40_000}
    study["workload"]["hyperparameters"] |= stepping
    plan = planned(tmp_path / "p", study)
    process = start(plan, JOB, HPCRL_ATTEMPT="local-1_0")
    wait_for_progress(plan)
    if stepping:  # Slurm without control groups signals every process of a step
        for other in psutil.Process(process.pid).children(recursive=True):
            other.send_signal(signal.SIGTERM)
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=120) == 0
    first = only_record(plan)
    assert first.footer is not None
    assert first.footer["outcome"] == "preempted"
    assert 0 < first.footer["steps"] < study["workload"]["hyperparameters"]["total_steps"]
    (kept,) = (plan / "checkpoints").iterdir()
    assert kept.stem == first.header["cell"]  # other cells must not go on from it
    assert run_task(plan, JOB, HPCRL_ATTEMPT="local-2_0").returncode == 0
    second = read_record(next((plan / "records").glob("*local-2_0*")))
    assert second.footer is not None
    assert second.footer["outcome"] == "completed"
    assert second.column("episodes", "step")[0] > first.footer["steps"]
    assert not list((plan / "checkpoints").iterdir())


def test_the_warning_of_the_time_limit_without_slurm_is_a_timeout_with_its_curve(tmp_path: Path) -> None:
    study = dqn_study()
    study["workload"]["hyperparameters"] |= {"total_steps": 10**6, "evaluation_interval": 10**6}
    plan = planned(tmp_path / "p", study)
    process = start(plan, JOB)
    wait_for_progress(plan)
    process.send_signal(signal.SIGUSR2)
    assert process.wait(timeout=120) == 1
    data = only_record(plan)
    assert data.footer is not None
    assert data.footer["outcome"] == "timeout"
    assert len(data.column("episodes", "step")) > 5


def test_killed_at_once_the_record_reads_back(tmp_path: Path) -> None:
    study = dqn_study()
    study["workload"]["hyperparameters"] |= {"total_steps": 10**6, "evaluation_interval": 10**6}
    plan = planned(tmp_path / "p", study)
    process = start(plan, JOB)
    wait_for_progress(plan)
    process.kill()
    process.wait()
    data = only_record(plan)
    assert data.footer is None
    assert len(data.column("episodes", "step")) > 5


# Four GPUs, of which nothing can be measured.
FOUR_GPUS = """
class NVMLError(Exception): ...
class NVMLError_NotSupported(NVMLError): ...
class Other(NVMLError): ...
NVMLError_NoPermission = NVMLError_LibraryNotFound = NVMLError_DriverNotLoaded = NVMLError_FunctionNotFound = Other
def nvmlInit(): ...
def nvmlDeviceGetCount(): return 4
def nvmlDeviceGetHandleByIndex(index): return index
def nvmlDeviceGetName(gpu): return f"V{gpu}"
def __getattr__(name):
    def unsupported(*arguments, **named): raise NVMLError_NotSupported
    return unsupported
"""


@pytest.mark.parametrize(("gpus", "idle"), [(3, "GPU 3"), (2, "GPU 2, GPU 3"), (4, None)])
def test_gpus_of_a_whole_node_that_a_cell_does_not_use_are_noted(tmp_path: Path, gpus: int, idle: str | None) -> None:
    (tmp_path / "fake").mkdir()
    (tmp_path / "fake" / "pynvml.py").write_text(FOUR_GPUS)
    code = "import os; print('seen', os.environ.get('CUDA_VISIBLE_DEVICES', 'all'))"
    resources = {"gpus": gpus, "exclusive": True, "memory": "1G", "time": "00:10:00"}
    study = command_study([sys.executable, "-c", code], resources=resources, environment="torch")
    plan = planned(tmp_path / "p", study, "sol")
    done = run_task(plan, "mine-torch-cuda-1", PYTHONPATH=f"{plan / 'worker.zip'}{os.pathsep}{tmp_path / 'fake'}")
    assert done.returncode == 0, done.stderr
    assert f"seen {'0,1,2,3'[: 2 * gpus - 1] if idle else 'all'}" in done.stdout
    notes = [text for text in only_record(plan).events if "idle" in text]
    assert notes == ([f"idle: {idle} (the cell uses {gpus} GPUs of its node)"] if idle else [])


def test_ranks_write_a_record_each_and_fail_together(tmp_path: Path) -> None:
    # Rank 1 fails once both are at work: a rank that is ended before it began leaves no record.
    code = (
        "import os, sys, time\n"
        "while len(os.listdir(sys.argv[1])) < 2: time.sleep(0.05)\n"
        "sys.exit(7) if os.environ['HPCRL_RANK'] == '1' else time.sleep(60)"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "p/records")]
    resources = {"tasks": 2, "memory": "1G", "time": "00:10:00"}
    plan = planned(tmp_path / "p", command_study(command, resources=resources))
    done = run_task(plan, "mine-numpy-cpu-1", 0, "--ranks", "2")
    assert done.returncode == 1
    records = sorted((plan / "records").iterdir())
    assert [path.name.split(".")[-2] for path in records] == ["r0", "r1"]
    footer = read_record(records[1]).footer
    assert footer is not None
    assert "exit code 7" in footer["reason"]


@pytest.mark.parametrize("profiler", [None, "cprofile"])
def test_the_end_of_a_killed_rank_is_written_by_its_parent(tmp_path: Path, profiler: str | None) -> None:
    """Its record gets a footer, and its attempt an end, but not one under a profiler, which does not count for the cell."""
    plan = planned(tmp_path / "p", ranks_study(2, nodes=1), "sol")
    (cell,) = read_cells(plan)
    write_record(plan, cells_of(plan)[0], "7_0-0", rank=1, outcome=None)
    start_of_cell = Start(cell.id, "1", 0, "7_0", "m")
    assert take_attempt(plan, start_of_cell, {}) is None
    facts = {"outcome": "failed", "reason": "killed by SIGKILL", "killed_by": "SIGKILL"}
    allocation = Allocation("n1", 1, 2, 1, "7_0-0", 0, "7_0")
    end_killed_rank(plan, cell, allocation, start_of_cell, is_extra(cell, profiler), facts)
    footer = only_record(plan).footer
    assert footer is not None
    assert footer["reason"] == "killed by SIGKILL"
    assert read_attempts(plan).outcome(cell.id, 1) == (None if profiler else "failed")
