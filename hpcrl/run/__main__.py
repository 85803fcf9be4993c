"""``python -m hpcrl.run PLAN --job JOB --task N``: what a plan's scripts call, in the cell's own environment."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from hpcrl.errors import HpcrlError, UsageError
from hpcrl.formats.plan import find_cell, read_plan
from hpcrl.run.allocation import read_allocation
from hpcrl.run.cell import cell_of, run_cell
from hpcrl.run.ranks import start_ranks


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
    parser.add_argument("--interval", type=float, help="seconds between samples, instead of the study's")
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
        allocation = read_allocation()
        if options.ranks > 1 and "HPCRL_RANKS" not in os.environ:
            framework, parallelism = str(cell.config.get("framework")), str(cell.resources.get("parallelism"))
            command = [sys.executable, "-m", "hpcrl.run", *arguments]
            return start_ranks(command, options.ranks, framework, parallelism, allocation.attempt)
        interval = float(options.interval or plan.study.get("sample_interval", 1.0))
        code = run_cell(options.plan, plan, job, cell, allocation, interval)
        if code and allocation.ranks > 1:
            # Without the libraries' farewells: they would wait for the other ranks, which wait for this one.
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
        return code
    except HpcrlError as error:
        print(f"hpcrl: {error}", file=sys.stderr)
        return error.exit_code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
