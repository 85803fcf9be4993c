"""``python -m hpcrl.run PLAN --job JOB --task N``: what a plan's scripts call, in the cell's own environment."""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import FrameType

from hpcrl.errors import HpcrlError, UsageError
from hpcrl.formats.plan import find_cell, read_plan
from hpcrl.run.allocation import read_allocation
from hpcrl.run.cell import cell_of, run_cell


def main(arguments: list[str]) -> int:
    """Parse, run one rank (or start all ranks of a cell on this machine), and return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m hpcrl.run", description="Run one cell of a plan in this environment."
    )
    parser.add_argument("plan", type=Path)
    parser.add_argument("--job")
    parser.add_argument("--task", type=int, default=0)
    parser.add_argument("--cell", help="id of the cell, instead of --job and --task")
    parser.add_argument("--ranks", type=int, default=1, help="start this many ranks on this machine")
    parser.add_argument("--interval", type=float, default=1.0, help="seconds between samples")
    options = parser.parse_args(arguments)
    try:
        plan = read_plan(options.plan)
        if options.cell:
            cell, job, _ = find_cell(options.plan, plan, options.cell)
        elif options.job:
            job = plan.job(options.job)
            cell = cell_of(options.plan, job, options.task)
        else:
            raise UsageError("give --cell, or --job and --task")
        if options.ranks > 1 and "HPCRL_RANK" not in os.environ:
            return _start_ranks(arguments, options.ranks)
        return run_cell(options.plan, plan, job, cell, read_allocation(), options.interval)
    except HpcrlError as error:
        print(f"hpcrl: {error}", file=sys.stderr)
        return error.exit_code


def _start_ranks(arguments: list[str], ranks: int) -> int:
    """Start every rank on this machine; when one fails, end the others within seconds. Return the first failure's code."""
    attempt = read_allocation().attempt
    children = [
        subprocess.Popen(
            [sys.executable, "-m", "hpcrl.run", *arguments],
            env={**os.environ, "HPCRL_RANK": str(rank), "HPCRL_RANKS": str(ranks), "HPCRL_ATTEMPT": attempt},
        )
        for rank in range(ranks)
    ]

    def hand_on(number: int, frame: FrameType | None) -> None:
        for child in children:
            child.send_signal(number)

    for number in (signal.SIGUSR2, signal.SIGTERM):
        signal.signal(number, hand_on)
    failed = 0
    while None in (codes := [child.poll() for child in children]):
        if not failed and (failed := next((code for code in codes if code), 0)):
            for child in children:
                child.terminate()
        time.sleep(0.2)
    return failed or next((code for code in codes if code), 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
