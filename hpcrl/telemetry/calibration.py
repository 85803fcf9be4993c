"""Measure how fast this node is at four simple things, so that results of clusters can be normalised.

The first cell on each node of a plan measures it, on the cell's own cores. The other cells on the node record the same
result. It is stored in the plan directory, ``calibration/NODE.json``.

``python -m hpcrl.telemetry.calibration SECONDS`` prints the result as JSON. In a separate process it leaves nothing in a
cell's memory, and it imports no library into the cell, which would shorten the start-up of this cell alone.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from hpcrl.formats.kept import keep_numbers, kept_numbers

DIRECTORY = "calibration"
_NAMES = {"matrix", "memory", "python", "environment", "unix_time"}


def measure(seconds: float) -> dict[str, float]:
    """Measure for so many seconds in total; each value is the median of the rates of many short repetitions.

    Returns:
        ``matrix``: GFLOP/s of a product of two 1,024 x 1,024 float32 matrices, on NumPy's threads;
        ``memory``: GB/s read and written by copying 64 MiB, one thread;
        ``python``: million iterations of an empty loop per second;
        ``environment``: CartPole-v1 steps per second, if gymnasium is installed;
        ``unix_time``: time of the measurement.
    """
    import numpy as np

    side, size = 1024, 64 * 1024**2
    left = np.random.default_rng(0).random((side, side), np.float32)
    product = np.empty_like(left)
    source, target = np.ones(size, np.uint8), np.empty(size, np.uint8)
    target.fill(0)  # creates its pages
    parts: dict[str, tuple[float, Callable[[], object]]] = {
        "matrix": (2 * side**3 / 1e9, lambda: np.matmul(left, left, out=product)),
        "memory": (2 * size / 1e9, lambda: np.copyto(target, source)),
        "python": (0.1, _loop),
    }
    if (steps := _cartpole()) is not None:
        parts["environment"] = (1_000.0, steps)
    result = {name: work / _median_seconds(once, seconds / len(parts)) for name, (work, once) in parts.items()}
    return result | {"unix_time": time.time()}


def _median_seconds(once: Callable[[], object], budget: float) -> float:
    once()
    taken: list[float] = []
    until = time.perf_counter() + budget
    while not taken or time.perf_counter() < until:
        start = time.perf_counter()
        once()
        taken.append(time.perf_counter() - start)
    return statistics.median(taken)


def _loop() -> None:
    for _ in range(100_000):
        pass


def _cartpole() -> Callable[[], None] | None:
    try:
        import gymnasium
    except ImportError:  # an environment for a user's command may lack it
        return None
    environment = gymnasium.make("CartPole-v1")
    environment.reset(seed=0)

    def steps() -> None:
        for index in range(1_000):
            _, _, terminated, truncated, _ = environment.step(index % 2)
            if terminated or truncated:
                environment.reset()

    return steps


class Calibration:
    """The calibration of this node for one plan: the first cell measures, the others read the result.

    Args:
        directory: the plan's.
        node: name of this node.
    """

    def __init__(self, directory: Path, node: str) -> None:
        self._file = directory / DIRECTORY / f"{node}.json"

    def measure(self, seconds: float) -> dict[str, float] | None:
        """Measure if no cell on this node does or did; return the result, None if another cell is measuring."""
        try:
            self._file.parent.mkdir(exist_ok=True)
            if self._file.parent.is_symlink():
                return None
            handle = os.open(self._file.with_suffix(".claim"), os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
        except OSError:
            return self.read()
        os.close(handle)
        command = [sys.executable, "-P", "-m", "hpcrl.telemetry.calibration", str(seconds)]
        try:
            done = subprocess.run(command, stdout=subprocess.PIPE, check=True, timeout=10 * seconds + 60)
            result: dict[str, float] = json.loads(done.stdout)
        except (OSError, subprocess.SubprocessError, ValueError):
            return None
        keep_numbers(self._file, result)
        return result

    def read(self) -> dict[str, float] | None:
        """Return the result of this node; None if there is none yet."""
        numbers = kept_numbers(self._file)
        return numbers if numbers and set(numbers) <= _NAMES else None


if __name__ == "__main__":
    print(json.dumps(measure(float(sys.argv[1]))))
