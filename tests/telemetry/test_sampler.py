from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from hpcrl.telemetry import sampler
from hpcrl.telemetry.sampler import Own


class Clocks:
    """Both of the sampler's clocks, moved by hand."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now, self.spent = 100.0, 1.0
        monkeypatch.setattr(sampler.time, "monotonic", lambda: self.now)
        monkeypatch.setattr(sampler.time, "process_time", lambda: self.spent)


@pytest.mark.parametrize(("interval", "cost", "gap"), [(1.0, 0.03, 15.0), (0.05, 0.03, 0.75), (1.0, 0.0003, 0.15)])
def test_a_large_job_is_looked_at_more_rarely(
    monkeypatch: pytest.MonkeyPatch, interval: float, cost: float, gap: float
) -> None:
    """So that looking costs 0.2 % of a core at one sample a second, and in proportion at more."""
    clocks = Clocks(monkeypatch)
    own = Own(os.getpid(), interval)

    def read() -> dict[str, float]:
        clocks.spent += cost
        return {"rss": 1.0}

    monkeypatch.setattr(own.tree, "read", read)
    monkeypatch.setattr(own.tree, "pss", lambda: 2.0)
    first = own.read()
    assert (first["rss"], first["pss"], first["memory_peak"]) == (1.0, 2.0, 2.0)
    clocks.now += 0.99 * gap
    assert own.read() == {}
    assert own.read(last=True)["rss"] == 1.0
    clocks.now += 1.01 * gap
    assert own.read()["rss"] == 1.0


def test_all_that_is_read_of_a_large_job_costs_little(monkeypatch: pytest.MonkeyPatch) -> None:
    """0.3 % of a core, whatever a reading of the tree and one of its memory cost."""
    clocks = Clocks(monkeypatch)
    own = Own(os.getpid(), 1.0)
    reads = {"tree": 0, "pss": 0}

    def read(name: str, cost: float) -> float:
        clocks.spent += cost
        reads[name] += 1
        return 1.0

    monkeypatch.setattr(own.tree, "read", lambda: {"rss": read("tree", 0.015)})
    monkeypatch.setattr(own.tree, "pss", lambda: read("pss", 0.13))
    own.read()
    start, spent = clocks.now, clocks.spent
    while clocks.now < start + 3000:
        clocks.now += 1.0
        own.read()
    assert clocks.spent - spent < 0.0032 * (clocks.now - start)
    assert reads["tree"] > 300
    assert reads["pss"] > 20


def test_the_shortest_run_has_a_sample() -> None:
    """Standard input ends at once: whoever started the sampler is gone long before the first interval is over."""
    words = [sys.executable, "-m", "hpcrl.telemetry.sampler", str(os.getpid()), "3600"]
    done = subprocess.run(words, input="", capture_output=True, text=True, check=True, timeout=120)
    (sample,) = [json.loads(line) for line in done.stdout.splitlines()]
    assert sample["rss"] > 1e7 and sample["machine_memory_percent"] > 0
