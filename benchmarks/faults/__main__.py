"""Every fault, N times at random moments, on private Slurms: ``python -m benchmarks.faults [--repeat N] [--slurms N]``.

The trials are taken round by round: a run that is interrupted (Ctrl-C) ends its trials and has as many of each fault,
within one.
"""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
import threading
import traceback
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from benchmarks.faults.rig import Count, Rig
from benchmarks.faults.scenarios import SCENARIOS, run_scenario


class Trials:
    """The trials still to do, shared by the Slurms, and what came of the others."""

    def __init__(self, names: list[str], repeat: int) -> None:
        self.counts = {name: Count() for name in names}
        self._left = deque(names * repeat)
        self._lock = threading.Lock()

    def stop(self) -> None:
        self._left.clear()

    def work(self, cells: int) -> None:
        """Take trials until none is left, on a Slurm of one's own."""
        with self._lock:  # two Slurms that start at once may choose the same ports
            rig = Rig(Path(tempfile.mkdtemp(prefix="hf-", dir="/tmp")), cells)
        try:
            while True:
                try:
                    name = self._left.popleft()
                except IndexError:
                    return
                try:
                    found = run_scenario(rig, name)
                except Exception as error:  # a fault of this benchmark, or of Slurm's own commands: it counts too
                    found = rig.count
                    found.tracebacks += 1
                    found.notes.append("".join(traceback.format_exception(error)))
                self._add(name, found)
        finally:
            rig.close()

    def _add(self, name: str, found: Count) -> None:
        with self._lock:
            self.counts[name].add(found)
            for note in found.notes:
                print(f"{name}: {note}", file=sys.stderr, flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeat", type=int, default=3, help="trials of each fault")
    parser.add_argument("--cells", type=int, default=5, help="cells of each trial")
    parser.add_argument("--slurms", type=int, default=1, help="private Slurms that work side by side")
    parser.add_argument("--only", help="faults whose names hold these words")
    options = parser.parse_args()
    trials = Trials([name for name in SCENARIOS if not options.only or options.only in name], options.repeat)
    for number in (signal.SIGINT, signal.SIGTERM):  # also where the shell that started this ignores them
        signal.signal(number, signal.default_int_handler)
    with ThreadPoolExecutor(options.slurms) as pool:
        working = [pool.submit(trials.work, options.cells) for _ in range(options.slurms)]
        try:
            for each in working:
                each.result()
        except KeyboardInterrupt:
            trials.stop()
    print(f"| fault | trials | lost | ran twice | told wrongly | hangs | tracebacks |\n|{'---|' * 7}")
    for name, found in trials.counts.items():
        columns = (found.trials, found.lost, found.twice, found.wrong, found.hangs, found.tracebacks)
        print(f"| {name} | {' | '.join(map(str, columns))} |")
    return 1 if any(found.faults() for found in trials.counts.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
