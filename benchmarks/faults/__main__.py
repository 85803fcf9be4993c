"""``python -m benchmarks.faults [--repeat N] [--cells N] [--only WORDS]``: every fault, N times at random moments."""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from benchmarks.faults.rig import Count, Rig
from benchmarks.faults.scenarios import SCENARIOS, run_scenarios


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeat", type=int, default=3, help="trials of each fault")
    parser.add_argument("--cells", type=int, default=5, help="cells of each trial")
    parser.add_argument("--only", help="faults whose names hold these words")
    options = parser.parse_args()
    names = [name for name in SCENARIOS if not options.only or options.only in name]
    rig = Rig(Path(tempfile.mkdtemp(prefix="hf-", dir="/tmp")), options.cells)
    worst = 0
    print(f"| fault | trials | lost | ran twice | told wrongly | hangs | tracebacks |\n|{'---|' * 7}")
    try:
        for name in names:
            found: Count = run_scenarios(rig, [name], options.repeat)[name]
            worst += found.faults()
            print(
                f"| {name} | {found.trials} | {found.lost} | {found.twice} | {found.wrong} | {found.hangs} | {found.tracebacks} |",
                flush=True,
            )
            for note in dict.fromkeys(found.notes):
                print(f"    {note}", file=sys.stderr, flush=True)
    finally:
        rig.close()
    return 1 if worst else 0


if __name__ == "__main__":
    sys.exit(main())
