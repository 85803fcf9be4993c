"""``python -m hpcrl.run PLAN --job JOB --index N``: a plan's scripts call it, in the cell's own environment."""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from pathlib import Path

from hpcrl.errors import HpcrlError, UsageError
from hpcrl.formats.attempts import begins, note_turned_away, take_attempt
from hpcrl.formats.finding import find_cell
from hpcrl.formats.plan import find_job, read_plan
from hpcrl.formats.processes import this_process
from hpcrl.formats.submission import read_entry
from hpcrl.profilers import FROM, PROFILERS, STEPS
from hpcrl.run.allocation import read_allocation, start_of
from hpcrl.run.cell import cell_of, end_killed_rank, is_extra, run_cell
from hpcrl.run.ranks import start_ranks
from hpcrl.run.supervisor import fork_rank
from hpcrl.telemetry.processes import name_runner


def _interval(text: str) -> float:
    seconds = float(text)
    if not 0.05 <= seconds <= 3600:  # refuses NaN, too
        raise argparse.ArgumentTypeError(f"expected a number of seconds from 0.05 to 3600, got {text}")
    return seconds


def main(arguments: list[str]) -> int:
    """Parse, run one rank (or start all ranks of a cell on this machine), and return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m hpcrl.run", description="Run one cell of a plan in this environment."
    )
    parser.add_argument("plan", type=Path)
    parser.add_argument("--job")
    parser.add_argument("--index", type=int, default=0, help="index of the job array")
    parser.add_argument("--slot", type=int, default=0, help="number of the cell among those of the array task")
    parser.add_argument("--submission", help="token of the submission of this attempt")
    parser.add_argument("--cell", help="id of the cell, instead of --job and --index")
    parser.add_argument("--ranks", type=int, default=1, help="start this many ranks on this machine")
    parser.add_argument("--interval", type=_interval, help="seconds between samples, instead of the study's")
    parser.add_argument(
        "--profile", choices=list(PROFILERS), help="profile the cell; this attempt does not complete it"
    )
    parser.add_argument("--profile-from", type=int, help="the environment step at which the profiler begins")
    parser.add_argument("--profile-steps", type=int, help="for how many environment steps it looks")
    options = parser.parse_args(arguments)
    window = {FROM: options.profile_from, STEPS: options.profile_steps}
    try:
        attempt = None
        if options.cell:
            plan = read_plan(options.plan)
            cell, job, _ = find_cell(options.plan, plan, options.cell)
        elif options.job:
            plan, job = find_job(options.plan, options.job)
            task = options.index * job.cells_per_task + options.slot
            if options.submission:
                entry = read_entry(options.plan, options.submission, options.index, options.slot)
                if entry is None:
                    return 0  # the last array task has fewer cells
                task, attempt = entry
            elif options.slot and task >= job.count:
                return 0
            cell = cell_of(options.plan, job, task)
        else:
            raise UsageError("give --cell, or --job and --index")
        allocation = read_allocation()
        start = start_of(cell, attempt, allocation, submission=options.submission)
        token = {"token": start.submission} if start.submission else {}
        facts = {"node": allocation.node, "time": time.time(), **token, **this_process()}
        if refusal := take_attempt(options.plan, start, facts):
            if allocation.rank == 0:
                note_turned_away(options.plan, start)
                print(f"hpcrl: {refusal}", file=sys.stderr)
            return 0
        if (
            allocation.rank == 0 and "HPCRL_RANKS" not in os.environ
        ):  # if set, this is one of the ranks that are started below
            print(begins(start), file=sys.stderr, flush=True)
        launch = "mpi" if plan.has_actors(cell.config) else plan.workload.get("launch")
        if (options.ranks > 1 or (launch and allocation.key is None)) and "HPCRL_RANKS" not in os.environ:
            framework, parallelism = str(cell.config.get("framework")), str(cell.resources.get("parallelism"))
            command = [sys.executable, *(["-P"] if sys.flags.safe_path else []), "-m", "hpcrl.run", *arguments]
            os.environ["HPCRL_START"] = start.mark
            name_runner()
            return start_ranks(command, options.ranks, framework, parallelism, allocation.attempt, launch)
        if allocation.ranks > 1:
            extra = is_extra(cell, options.profile, window)
            ended = fork_rank(lambda facts: end_killed_rank(options.plan, cell, allocation, start, extra, facts))
            if ended is not None:
                return ended
        interval = float(options.interval or plan.study.sample_interval)
        code = run_cell(options.plan, plan, job, cell, allocation, start, interval, options.profile, window)
        # The warning may come twice. At its end Python restores the default action of a caught signal, but not of an ignored one.
        signal.signal(signal.SIGUSR2, signal.SIG_IGN)
        if code and allocation.ranks > 1:
            # Skip the libraries' exit handlers: they would wait for the other ranks, which wait for this one.
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
        return code
    except HpcrlError as error:
        print(f"hpcrl: {error}", file=sys.stderr)
        return error.exit_code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
