"""From which cost of an environment's step on do processes of environments pay?

python -m benchmarks.crossing [ENVIRONMENTS ...]

Environments whose step computes for a given time are stepped one after another (`sync`), in processes with shared memory (`processes`) and in
processes with pipes (`pipes`), 8 of them or as many as asked for, on all cores of this machine. Microseconds of a step of one environment, the
least of some rounds in turn. Where processes begin to be faster is interpolated between the costs that were measured.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.training_speed import one_thread, python_of
from hpcrl.formats.worker import worker_zip

COSTS = (0, 10, 20, 50, 100, 200, 500, 1_000)  # microseconds of a step


def main(*counts: int) -> None:
    with tempfile.TemporaryDirectory() as place:
        worker = Path(place) / "worker.zip"
        worker.write_bytes(worker_zip())
        environment = one_thread(f"{worker}:{Path(__file__).parents[1]}")
        for count in counts or (8,):
            words = [python_of("numpy"), "-m", "benchmarks.crossing_program", str(count), *map(str, COSTS)]
            done = subprocess.run(words, env=environment, stdout=subprocess.PIPE, text=True, check=True)
            _show(count, json.loads(done.stdout.splitlines()[-1]))


def _show(count: int, rows: list[dict[str, float]]) -> None:
    """Print what the program measured: a row for each cost, with the cost that it really had."""
    print(f"{count} environments: microseconds of a step of one of them, and times as fast as sync")
    print(f"  {'cost':>8} {'sync':>8} {'processes':>10} {'x':>6} {'pipes':>8} {'x':>6}")
    for row in rows:
        ratios = {way: row["sync"] / row[way] for way in ("processes", "pipes")}
        print(
            f"  {row['cost']:8.1f} {row['sync']:8.1f} {row['processes']:10.1f} {ratios['processes']:6.2f} "
            f"{row['pipes']:8.1f} {ratios['pipes']:6.2f}"
        )
    for way in ("processes", "pipes"):
        print(f"  {way} pay from {pays_from(rows, way)}", flush=True)


def pays_from(rows: list[dict[str, float]], way: str) -> str:
    """Say from which cost on `way` is faster than sync, in words; costs ascend."""
    gains = [(row["cost"], row["sync"] - row[way]) for row in rows]
    slower = [number for number, (_, gain) in enumerate(gains) if gain <= 0]
    if not slower:
        return f"less than {gains[0][0]:.1f} us on"
    if (last := slower[-1]) == len(gains) - 1:
        return f"more than {gains[-1][0]:.0f} us on, if at all"
    (low, loss), (high, gain) = gains[last : last + 2]
    return f"about {low + (high - low) * loss / (loss - gain):.0f} us on"


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
