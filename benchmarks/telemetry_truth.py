"""``python -m benchmarks.telemetry_truth [WORDS]``: what a cell's row says beside what the kernel counted for the same run.

Each workload runs as the command of a cell, through plan, submit and collect. Its first act is to enter a control
group of its own: that is the reference, of the workload alone, without hpcrl. Nothing is subtracted from either side. Control
groups count no context switches: their reference is what getrusage says to the workload itself when its work is done, if it
has waited for all of its processes. Needs root, and control groups that can be made (version 1: cpuacct and memory; version
2). WORDS: only workloads whose names hold them.
"""

from __future__ import annotations

import hashlib
import math
import mmap
import multiprocessing
import os
import resource
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

import hpcrl

MIB = 2**20
# What may be between them: the goal, and for memory what a Python process holds before it does anything.
CPU_SHARE, CPU_SECONDS = 0.02, 0.05
MEMORY_SHARE, MEMORY_BYTES = 0.02, 12 * MIB
SWITCHES_SHARE, SWITCHES = 0.02, 200


def spin(seconds: float) -> None:
    """Use so much CPU time, however slow the machine is."""
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        math.sqrt(2.0)


def hold(mebibytes: int) -> mmap.mmap:
    """Allocate memory and touch every page of it."""
    memory = mmap.mmap(-1, mebibytes * MIB, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    touch(memory)
    return memory


def touch(memory: mmap.mmap, most: int | None = None) -> None:
    for page in range(0, most or len(memory), 4096):
        memory[page] = 1


def fork(what: Callable[[], object]) -> int:
    """Run something in a child process; return its id."""
    pid = os.fork()
    if pid == 0:
        what()
        os._exit(0)
    return pid


def wait_for_all() -> None:
    while True:
        try:
            os.wait()
        except ChildProcessError:
            return


def short() -> None:
    spin(0.2)


def busy() -> None:
    spin(3)


def part_of_the_time() -> None:
    for _ in range(100):
        spin(0.037)
        time.sleep(0.063)


def idle() -> None:
    time.sleep(4)


def daemon() -> None:
    """Double-fork, as a daemon does; the command itself ends before it."""

    def work() -> None:
        os.setsid()

        def serve() -> None:
            memory = hold(300)
            spin(3)
            time.sleep(600 if memory else 0)

        fork(serve)

    os.waitpid(fork(work), 0)
    time.sleep(6)


def stubborn_daemon() -> None:
    """Ignore TERM, too."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    daemon()


def orphans() -> None:
    """A middle process is killed; its children work on."""

    def middle() -> None:
        for _ in range(3):
            fork(lambda: spin(1.0))
        time.sleep(60)

    pid = fork(middle)
    time.sleep(1)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    time.sleep(4)


def children_not_waited_for() -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    for _ in range(8):
        fork(lambda: spin(0.5))
    wait_for_all()


def shared() -> None:
    """Four processes share 400 MiB."""
    memory = mmap.mmap(-1, 400 * MIB)
    touch(memory)

    def look() -> None:
        touch(memory)
        time.sleep(4)

    for _ in range(4):
        fork(look)
    wait_for_all()


def copied_on_write() -> None:
    """Two children change half of the 200 MiB that they got from their parent."""
    memory = hold(200)

    def change() -> None:
        touch(memory, 100 * MIB)
        time.sleep(8)

    for _ in range(2):
        fork(change)
    wait_for_all()


def spike() -> None:
    time.sleep(1.3)
    memory = hold(800)
    time.sleep(0.15)
    memory.close()
    time.sleep(2)


def spike_of_a_child() -> None:
    """One that begins and ends between two readings."""
    time.sleep(1.3)

    def peak() -> None:
        memory = hold(500)
        time.sleep(0.1 if memory else 0)

    fork(peak)
    wait_for_all()
    time.sleep(2)


def stairs() -> None:
    kept = []
    for _ in range(6):
        kept.append(hold(100))
        time.sleep(1)


def threads_that_sleep() -> None:
    def sleeps() -> None:
        for _ in range(2000):
            time.sleep(0.001)

    workers = [threading.Thread(target=sleeps) for _ in range(8)]
    for each in workers:
        each.start()
    for each in workers:
        each.join()


def threads_that_compute() -> None:
    def digests() -> None:
        data = bytes(4 * MIB)
        until = time.thread_time() + 1
        while time.thread_time() < until:
            hashlib.sha256(data)

    workers = [threading.Thread(target=digests) for _ in range(4)]
    for each in workers:
        each.start()
    for each in workers:
        each.join()


def many_short_processes() -> None:
    for _ in range(1500):
        subprocess.run(["true"], check=True)


def many_short_threads() -> None:
    for _ in range(3000):
        thread = threading.Thread(target=lambda: hashlib.sha256(bytes(MIB)))
        thread.start()
        thread.join()


def pool() -> None:
    with multiprocessing.get_context("fork").Pool(4) as workers:
        workers.map(spin, [0.25] * 16)


def shell_pipeline() -> None:
    subprocess.run(["sh", "-c", "head -c 300M /dev/zero | gzip -1 | gzip -d | wc -c >/dev/null"], check=True)


def another_program() -> None:
    os.execlp("sh", "sh", "-c", "i=0; while [ $i -lt 1000000 ]; do i=$((i+1)); done")


WORKLOADS: dict[str, Callable[[], None]] = {
    each.__name__: each
    for each in (
        short, busy, part_of_the_time, idle, daemon, stubborn_daemon, orphans, children_not_waited_for, shared,
        copied_on_write, spike, spike_of_a_child, stairs, threads_that_sleep, threads_that_compute,
        many_short_processes, many_short_threads, pool, shell_pipeline, another_program,
    )
}  # fmt: skip
# They do not wait for all of their processes, so that they do not know all context switches.
NOT_ALL_WAITED_FOR = (daemon, stubborn_daemon, orphans, children_not_waited_for)


def own_switches() -> int:
    """Return the context switches of this process and of those that it has waited for."""
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_nvcsw + usage.ru_nivcsw for usage in usages)


def run(name: str, file: Path) -> None:
    """Run a workload, and write its context switches into a file if all are known."""
    WORKLOADS[name]()
    if WORKLOADS[name] not in NOT_ALL_WAITED_FOR:
        file.write_text(str(own_switches()))


class Group:
    """A control group for one workload, and what the kernel counted for it."""

    def __init__(self, name: str) -> None:
        root = Path("/sys/fs/cgroup")
        if (root / "memory").is_dir():
            self._cpu, self._memory = root / "cpuacct" / name, root / "memory" / name
        else:
            self._cpu = self._memory = root / name
        for each in {self._cpu, self._memory}:
            each.mkdir()

    def entered(self, command: str) -> str:
        """Return the shell command that enters the group and becomes another one."""
        enter = "".join(f"echo $$ > {each}/cgroup.procs && " for each in {self._cpu, self._memory})
        return f"{enter}exec {command}"

    def usage(self) -> tuple[float, float]:
        """Return CPU seconds, and the most bytes."""
        if (usage := self._cpu / "cpuacct.usage").exists():
            return int(usage.read_text()) / 1e9, float((self._memory / "memory.max_usage_in_bytes").read_text())
        text = (self._cpu / "cpu.stat").read_text().partition("usage_usec ")[2].partition("\n")[0]
        return int(text) / 1e6, float((self._memory / "memory.peak").read_text())

    def remove(self) -> int:
        """Remove it; return how many processes were still in it."""
        left = (self._cpu / "cgroup.procs").read_text().split()
        for pid in left:
            os.kill(int(pid), signal.SIGKILL)
        while (self._cpu / "cgroup.procs").read_text():
            time.sleep(0.05)
        for each in {self._cpu, self._memory}:
            each.rmdir()
        return len(left)


def measure(name: str, directory: Path) -> tuple[dict[str, Any], float, float, int | None, int]:
    """Run one workload as a cell. Return its row; CPU seconds, bytes, context switches (None: unknown) and left processes of the
    reference."""
    group = Group(f"hpcrl-truth-{os.getpid()}-{name}")
    switches = directory / f"{name}-switches"
    command = group.entered(f"{sys.executable} -m benchmarks.telemetry_truth --run {name} {switches}")
    study = {
        "name": "truth", "title": name, "workload": {"command": ["sh", "-c", command]}, "axes": {"variant": [name]},
        "chain": "parallel", "resources": {"memory": "2G", "time": "00:10:00"}, "calibration_seconds": 0, "idle_seconds": 0,
    }  # fmt: skip
    path = directory / f"{name}.yaml"
    with path.open("w") as file:
        YAML(typ="safe").dump(study, file)
    plan, dataset = directory / f"{name}-plan", directory / f"{name}-data"
    try:
        for words in (
            ("plan", "--study", path, "-o", plan),
            ("submit", plan, "--wait"),
            ("collect", plan, "-o", dataset),
        ):
            done = subprocess.run(
                [sys.executable, "-m", "hpcrl", *map(str, words)], capture_output=True, text=True, check=False
            )
            if done.returncode:
                raise RuntimeError(f"hpcrl {words[0]}: {done.stderr}")
        seconds, most = group.usage()
    finally:
        left = group.remove()
    (row,) = hpcrl.load(dataset).to_dict("records")
    known = int(switches.read_text()) if switches.exists() else None
    return {str(name): value for name, value in row.items()}, seconds, most, known, left


def main(words: str = "") -> int:
    directory = Path(tempfile.mkdtemp(prefix="ht-", dir="/tmp"))
    os.environ["PYTHONPATH"] = os.pathsep.join([str(Path.cwd()), *os.environ.get("PYTHONPATH", "").split(os.pathsep)])
    print(
        "| workload | CPU s: kernel | hpcrl | MiB: kernel | hpcrl | RSS sum | switches: kernel | hpcrl | left running | |\n"
        "|---|---|---|---|---|---|---|---|---|---|"
    )
    wrong = 0
    for name in (each for each in WORKLOADS if words in each):
        row, seconds, most, wanted, left = measure(name, directory)
        cpu, memory, switches = row["cpu_seconds"], row["memory_peak"], row["context_switches"]
        bad = []
        if not abs(cpu - seconds) <= max(CPU_SHARE * seconds, CPU_SECONDS):
            bad.append("CPU")
        if not abs(memory - most) <= max(MEMORY_SHARE * most, MEMORY_BYTES):
            bad.append("memory")
        if wanted is not None and not abs(switches - wanted) <= max(SWITCHES_SHARE * wanted, SWITCHES):
            bad.append("switches")
        if name == "threads_that_sleep" and not abs(switches - 16_000) <= 1_000:
            bad.append("not 16,000 switches")
        bad += ["left running"] if left else []
        wrong += bool(bad)
        print(
            f"| {name.replace('_', ' ')} | {seconds:.2f} | {cpu:.2f} | {most / MIB:.0f} | {memory / MIB:.0f} | "
            f"{row['rss_peak'] / MIB:.0f} | {'unknown' if wanted is None else wanted} | {switches:.0f} | {left} | "
            f"{', '.join(bad)} {row['notes'] or ''} |",
            flush=True,
        )
    print(f"\n{wrong} of them wrong")
    return wrong > 0


if __name__ == "__main__":
    if sys.argv[1:2] == ["--run"]:
        run(sys.argv[2], Path(sys.argv[3]))
    else:
        sys.exit(main(*sys.argv[1:]))
