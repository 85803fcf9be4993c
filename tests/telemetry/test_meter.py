"""Each case runs in a process of its own: what was waited for before would be in the counts."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from hpcrl.telemetry import meter

PROGRAM = """
import json, os, signal, subprocess, sys, threading, time
from hpcrl.telemetry.meter import Meter
from hpcrl.telemetry.processes import adopt_orphans
SPIN = "import time; t = time.process_time() + 0.2\\nwhile time.process_time() < t: pass\\n"
def spin():
    t = time.thread_time() + 0.2
    while time.thread_time() < t: pass
adopt_orphans()
meter = Meter(within={within})
spin()
{what}
used = meter.usage()
print(json.dumps(used._asdict()))
"""
CHILD = "subprocess.run([sys.executable, '-c', SPIN])"
ORPHAN = """
subprocess.run(["sh", "-c", f"{sys.executable} -c '{SPIN}' & exit"])
os.wait()
"""
IGNORED = """
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
child = subprocess.Popen([sys.executable, "-c", SPIN])
try:
    os.waitpid(child.pid, 0)
except ChildProcessError:
    pass
"""
THREAD = "thread = threading.Thread(target=spin); thread.start(); thread.join()"
LARGE = "subprocess.run([sys.executable, '-c', 'x = bytearray(range(256)) * 1200 * 1024'])"


def usage(what: str, within: bool = False) -> dict[str, Any]:
    text = PROGRAM.format(within=within, what=what)
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=True)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize(
    ("what", "within", "least", "most"),
    [
        ("", False, 0.0, 0.02),
        ("", True, 0.2, 0.3),
        (THREAD, True, 0.4, 0.5),
        (CHILD, False, 0.2, 0.4),
        (CHILD, True, 0.4, 0.6),
        (ORPHAN, False, 0.2, 0.4),
    ],
)
def test_cpu_time_of_the_workload_alone(what: str, within: bool, least: float, most: float) -> None:
    used = usage(what, within)
    assert least <= used["cpu_seconds"] <= most
    if used["counted_seconds"] is not None:
        assert used["counted_seconds"] >= 0.9 * least


def test_children_that_nobody_waits_for_are_known_to_the_counter_alone() -> None:
    used = usage(IGNORED)
    assert used["cpu_seconds"] < 0.1
    if used["counted_seconds"] is None:
        pytest.skip("this kernel forbids perf_event_open")
    assert used["counted_seconds"] >= 0.2


def test_the_largest_process_is_known_where_it_exceeds_what_every_child_begins_with() -> None:
    assert usage(LARGE)["largest_process"] == pytest.approx(310 * 2**20, rel=0.05)
    assert usage("subprocess.run(['true'])")["largest_process"] is None


def test_a_machine_without_the_counter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(meter.platform, "machine", lambda: "abacus")
    one = meter.Meter(within=False)
    assert one.counted_seconds() is None
    assert one.usage().counted_seconds is None
