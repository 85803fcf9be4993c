"""hpcrl submit."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from hpcrl.catalogue.registry import schedulers
from hpcrl.cli.common import echo, echo_json, json_option, plan_argument, progress, say
from hpcrl.cli.completion import cell_ids
from hpcrl.errors import count

if TYPE_CHECKING:
    from hpcrl.submit.submission import Submitted


@click.command("submit", epilog="Example: hpcrl submit plan --wait")
@plan_argument
@click.option(
    "--executor", type=click.Choice(["auto", *schedulers()]), default="auto", show_default=True,
    help="Slurm, or this machine. auto: the one of the plan's cluster.",
)  # fmt: skip
@click.option(
    "--test-only",
    "only_test",
    is_flag=True,
    help="Ask Slurm whether it would accept every script. Submit nothing.",
)
@click.option(
    "--cell",
    "cells",
    multiple=True,
    shell_complete=cell_ids,
    help="Only this cell (the beginning of its id). May be repeated.",
)
@click.option(
    "--where",
    multiple=True,
    metavar="KEY=VALUE",
    help="Only cells of this configuration, such as seed=1. May be repeated.",
)
@click.option("--failed", is_flag=True, help="Only failed cells.")
@click.option("--again", is_flag=True, help="Also completed cells.")
@click.option(
    "--here", is_flag=True, help="Submit even if this plan is a copy of a submitted one, or its records are missing."
)
@click.option(
    "--retry",
    is_flag=True,
    help="Submit failed cells by the study's `retry`: by cause, with more time or memory. With --wait: until none is left.",
)
@click.option("--fed", is_flag=True, hidden=True, help="Only cells that were never submitted: the next part of a plan.")
@click.option("--max-core-hours", type=click.FloatRange(0), help="Refuse to exceed this sum over all attempts.")
@click.option("--max-gpu-hours", type=click.FloatRange(0), help="Refuse to exceed this sum over all attempts.")
@click.option("--wait", is_flag=True, help="Show progress until everything has ended.")
@json_option
def command(
    plan: Path,
    executor: str,
    only_test: bool,
    cells: tuple[str, ...],
    where: tuple[str, ...],
    failed: bool,
    again: bool,
    here: bool,
    retry: bool,
    fed: bool,
    max_core_hours: float | None,
    max_gpu_hours: float | None,
    wait: bool,
    as_json: bool,
) -> int:
    """Submit the cells that were never submitted or have failed.

    A second call submits nothing twice. The jobs do not need this process.
    """
    from hpcrl import api
    from hpcrl.cli.status import is_failed, watch

    if only_test:
        objections = api.test_only(plan, executor=executor)
        if as_json:
            echo_json(objections)
        else:
            for script, objection in objections.items():
                echo(f"{script}: {objection or 'would be accepted'}")
        return 1 if any(objections.values()) else 0
    with progress("submitting") as advance:
        done = api.submit(
            plan,
            executor=executor,
            cells=cells,
            where=where,
            failed=failed,
            again=again,
            here=here,
            retry=retry,
            fed=fed,
            max_core_hours=max_core_hours,
            max_gpu_hours=max_gpu_hours,
            progress=advance,
            say=say,
        )
    if as_json:
        echo_json(
            {
                "submitted": done.tasks,
                "already": done.already,
                "waiting": done.waiting,
                "left": done.left,
                "jobs": [list(job) for job in done.jobs],
            }
        )
    else:
        _tell(done)
        if not wait:
            echo(f"Follow them: hpcrl status {plan} --watch")
    if not wait:
        return 0
    status = api.wait(
        plan,
        waiting=done.waiting,
        retry=retry,
        executor=executor,
        max_core_hours=max_core_hours,
        max_gpu_hours=max_gpu_hours,
        watch=watch,
        told=_tell,
        say=say,
    )
    return int(is_failed(status))


def _tell(done: Submitted) -> None:
    echo(
        f"{count(done.tasks, 'cell')} submitted in {count(len(done.jobs), 'job')}"
        + (f"; {done.already} {'was' if done.already == 1 else 'were'} already submitted." if done.already else ".")
    )
    if done.waiting:
        echo(
            f"{count(done.waiting, 'cell')} {'follows' if done.waiting == 1 else 'follow'} when the queue has room: the last job of this part "
            "submits the next."
        )
    for reason, number in done.left.items():
        echo(f"  {count(number, 'cell')} not submitted: {reason}", err=True)
