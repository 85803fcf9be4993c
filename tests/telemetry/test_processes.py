"""The job's own processes and its control group. Slurm's groups are files made by hand here: they need a real job's."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from hpcrl.telemetry import processes
from hpcrl.telemetry.cgroup import ControlGroup, allowed_memory
from hpcrl.telemetry.processes import ProcessTree

# A parent with a thread that has a child of its own, which a list of the main thread's children does not show.
FAMILY = """
import subprocess, sys, threading
def nurse():
    subprocess.run([sys.executable, "-c", "import time; print('up', flush=True); time.sleep(60)"])
threading.Thread(target=nurse, daemon=True).start()
input()
"""


@pytest.fixture
def family() -> Iterator[subprocess.Popen[str]]:
    parent = subprocess.Popen([sys.executable, "-c", FAMILY], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    assert parent.stdout.readline() == "up\n"
    yield parent
    for each in [*psutil.Process(parent.pid).children(), psutil.Process(parent.pid)]:
        each.kill()
    parent.communicate()


def test_children_of_any_thread_are_found_as_psutil_finds_them(
    family: subprocess.Popen[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    tree = ProcessTree(family.pid)
    wanted = {family.pid, *(each.pid for each in psutil.Process(family.pid).children(recursive=True))}
    assert len(wanted) == 2
    assert set(tree.processes()) == wanted
    monkeypatch.setattr(processes, "_kernel_lists_children", lambda: False)
    monkeypatch.setattr(processes, "_text", lambda path: pytest.fail(f"{path} is not there on such a kernel"))
    assert set(tree.processes()) == wanted
    assert processes.children(family.pid) == [pid for pid in wanted if pid != family.pid]


def test_readings_agree_with_psutil(family: subprocess.Popen[str]) -> None:
    tree = ProcessTree(family.pid)
    found = tree.read()
    processes = [psutil.Process(family.pid), *psutil.Process(family.pid).children()]
    assert found["processes"] == 2
    assert found["threads"] == sum(each.num_threads() for each in processes) == 3
    assert found["rss"] == pytest.approx(
        sum(each.memory_info().rss for each in processes), abs=2**20
    )  # counted in batches
    assert found["cpu_seconds"] == pytest.approx(sum(sum(each.cpu_times()[:4]) for each in processes), abs=0.05)
    assert found["context_switches"] > 0
    shared = tree.pss()
    assert shared is not None
    assert 1e6 < shared < found["rss"]


def test_grandchildren_are_the_job_s_own_and_who_reads_is_not() -> None:
    words = ["bash", "-c", "bash -c '(sleep 600 & echo up; wait) & wait' & wait"]
    first = subprocess.Popen(words, stdout=subprocess.PIPE, text=True, start_new_session=True)
    try:
        assert first.stdout is not None
        assert first.stdout.readline() == "up\n"
        found = ProcessTree(first.pid).processes()
        assert len(found) == 4
        assert set(found) == {first.pid, *(each.pid for each in psutil.Process(first.pid).children(recursive=True))}
        around = ProcessTree(os.getppid()).processes()
        assert first.pid in around
        assert os.getpid() not in around
    finally:
        os.killpg(first.pid, signal.SIGKILL)
        first.communicate()


def test_context_switches_never_fall() -> None:
    """A thread that ends takes its count out of the kernel's lists."""
    code = """if True:
    import threading, time
    def sleep():
        for _ in range(500): time.sleep(0.0005)
        input()
    thread = threading.Thread(target=sleep)
    thread.start()
    time.sleep(1.5); print("slept", flush=True)
    thread.join(); print("ended", flush=True); input()
    """
    pipe = subprocess.PIPE
    process = subprocess.Popen([sys.executable, "-c", code], stdin=pipe, stdout=pipe, text=True)
    try:
        assert process.stdin is not None
        assert process.stdout is not None
        tree = ProcessTree(process.pid)
        assert process.stdout.readline() == "slept\n"
        before = tree.read()
        assert before["context_switches"] > 500
        process.stdin.write("\n")
        process.stdin.flush()
        assert process.stdout.readline() == "ended\n"
        # Python's thread has ended; the kernel's ends a moment later.
        deadline = time.monotonic() + 60
        while (after := tree.read())["threads"] > 1 and time.monotonic() < deadline:
            pass
        assert (before["threads"], after["threads"]) == (2, 1)
        assert after["context_switches"] >= before["context_switches"]
    finally:
        process.kill()
        process.communicate()


def test_a_process_that_ends_while_it_is_read_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    tree = ProcessTree(os.getpid())
    ended = subprocess.Popen(["true"])
    ended.wait()
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", "print(flush=True); input()"], stdin=pipe, stdout=pipe) as alive:
        assert alive.stdout is not None
        alive.stdout.readline()  # between fork and exec a process may have no memory
        monkeypatch.setattr(tree, "processes", lambda: [ended.pid, alive.pid])
        found = tree.read()
    assert found["processes"] == 1
    assert found["rss"] > 1e5


def test_a_process_that_is_gone_is_left_out(family: subprocess.Popen[str]) -> None:
    tree = ProcessTree(family.pid)
    for each in psutil.Process(family.pid).children():
        each.kill()
        each.wait()
    assert tree.read()["processes"] == 1


def job(tmp_path: Path, lines: str, files: dict[str, str]) -> ControlGroup:
    (tmp_path / "proc/7").mkdir(parents=True)
    (tmp_path / "proc/7/cgroup").write_text(lines)
    for name, text in files.items():
        path = tmp_path / "cgroup" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return ControlGroup(7, tmp_path / "cgroup", tmp_path / "proc")


def test_version_2(tmp_path: Path) -> None:
    step = "system.slice/slurmstepd.scope/job_41/step_0"
    group = job(
        tmp_path,
        f"0::/{step}/user/task_0\n",
        {
            f"{step}/cpu.stat": "usage_usec 2500000\nuser_usec 2000000\nsystem_usec 500000\n",
            f"{step}/memory.current": "1048576\n",
            f"{step}/memory.peak": "2097152\n",
            f"{step}/memory.max": "max\n",
        },
    )
    assert group.version == 2
    assert group.read() == {"cgroup_cpu": 2.5, "cgroup_memory": 2**20, "cgroup_memory_peak": 2**21}


def test_version_1(tmp_path: Path) -> None:
    step = "slurm/uid_1000/job_41/step_batch"
    group = job(
        tmp_path,
        f"9:memory:/{step}/task_0\n4:cpuacct,cpu:/{step}/task_0\n1:name=systemd:/x\n0::/\n",
        {
            f"cpuacct,cpu/{step}/cpuacct.usage": "2500000000\n",
            f"memory/{step}/memory.usage_in_bytes": "1048576\n",
            f"memory/{step}/memory.max_usage_in_bytes": "2097152\n",
            f"memory/{step}/memory.limit_in_bytes": "4194304\n",
        },
    )
    assert group.version == 1
    assert group.read() == {
        "cgroup_cpu": 2.5,
        "cgroup_memory": 2**20,
        "cgroup_memory_peak": 2**21,
        "cgroup_memory_limit": 2**22,
    }


@pytest.mark.parametrize("lines", ["0::/user.slice/user-0.slice/session-1.scope\n", "", "1:memory:/docker/ab\n0::/\n"])
def test_groups_that_are_not_a_job_s_are_not_its_own(tmp_path: Path, lines: str) -> None:
    group = job(tmp_path, lines, {})
    assert group.version is None
    assert group.read() == {}


def test_memory_that_may_be_used() -> None:
    assert 0 < allowed_memory() <= psutil.virtual_memory().total
