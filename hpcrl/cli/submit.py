"""hpcrl submit."""

from __future__ import annotations

import shutil
from contextlib import nullcontext
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import click

from hpcrl.cli.common import echo, echo_json, json_option, plan_argument, progress, say
from hpcrl.cli.completion import cell_ids
from hpcrl.errors import HpcrlError, UsageError, count

if TYPE_CHECKING:
    from hpcrl.formats.plan import Plan
    from hpcrl.slurm.client import Slurm
    from hpcrl.submit.submission import Submitted


@click.command("submit", epilog="Example: hpcrl submit plan --wait")
@plan_argument
@click.option(
    "--executor", type=click.Choice(["auto", "slurm", "local"]), default="auto", show_default=True,
    help="Where to: Slurm, or this machine. auto: what the plan's cluster has.",
)  # fmt: skip
@click.option(
    "--test-only",
    "only_test",
    is_flag=True,
    help="Ask Slurm whether it would take every script; submit nothing.",
)
@click.option(
    "--cell",
    "cells",
    multiple=True,
    shell_complete=cell_ids,
    help="Only this cell (the beginning of its id); may be given several times.",
)
@click.option("--failed", is_flag=True, help="Only cells that failed.")
@click.option("--again", is_flag=True, help="Also cells that have completed.")
@click.option(
    "--here", is_flag=True, help="Although this plan is a copy of one that was submitted, or its records are gone."
)
@click.option(
    "--retry",
    is_flag=True,
    help="Failed cells by the study's `retry`: by cause, with more time or memory. With --wait: until nothing is left to do.",
)
@click.option("--fed", is_flag=True, hidden=True, help="Only what was never submitted: the next part of a plan.")
@click.option("--max-core-hours", type=click.FloatRange(0), help="Refuse more, over all attempts.")
@click.option("--max-gpu-hours", type=click.FloatRange(0), help="Refuse more, over all attempts.")
@click.option("--wait", is_flag=True, help="Show progress until everything has ended.")
@json_option
def command(
    plan: Path,
    executor: str,
    only_test: bool,
    cells: tuple[str, ...],
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
    """Submit what was never submitted, or failed. Doing it twice submits nothing twice; this process may end."""
    from hpcrl.cli.status import watch
    from hpcrl.formats.plan import read_plan
    from hpcrl.slurm.client import Slurm
    from hpcrl.submit.following import Following
    from hpcrl.submit.notification import no_such_command
    from hpcrl.submit.selection import Budget, Choice
    from hpcrl.submit.submission import submit, test_only

    opened = read_plan(plan)
    if executor == "auto":
        executor = "slurm" if opened.cluster["scheduler"]["kind"] == "slurm" else "local"
    if executor == "slurm" and not shutil.which("sbatch"):
        raise HpcrlError(
            f"the plan is for {opened.cluster['title']}, and there is no sbatch here: copy {plan} to a login node, or use --executor local"
        )
    slurm = Slurm()
    if only_test and executor == "local":
        raise UsageError("--test-only asks Slurm, and this plan runs on this machine: submit it without --test-only")
    if only_test:
        objections = test_only(plan, slurm)
        if objection := _not_built(opened, plan):
            objections["environments"] = objection
        if as_json:
            echo_json(objections)
        else:
            for script, objection in objections.items():
                echo(f"{script}: {objection or 'would be taken'}")
        return 1 if any(objections.values()) else 0
    if objection := _not_built(opened, plan):
        raise HpcrlError(objection)
    if name := no_such_command(opened, plan):
        text = f"notify: {name}: no such command on this machine"
        if executor == "local":
            raise UsageError(f"{text}, so that the message would be lost: plan again with another `notify`")
        say(f"{text}: the message at the end fails unless the nodes have it")
    if any(job.stage == "report" for job in opened.jobs) and find_spec("altair") is None:
        say("the report at the end will fail: it needs more packages here: pip install 'hpcrl[report]'")
    budget = Budget(max_core_hours, max_gpu_hours)
    choice = Choice(cells, failed, again, here, retry, fed)
    with progress("submitting") as advance:
        done = submit(plan, executor, slurm, budget, lambda done, total, name: advance(done, total), choice, say)
    if as_json:
        echo_json(
            {
                "submitted": done.tasks,
                "already": done.already,
                "waiting": done.waiting,
                "left": done.left,
                "jobs": [list(each) for each in done.jobs],
            }
        )
    else:
        _tell(done)
        if not wait:
            echo(f"Follow them: hpcrl status {plan} --watch")
    if not wait:
        return 0
    # Cells that were chosen by hand go out once; what the queue had no room for, and retries, until nothing is left.
    choice = Choice(retry=retry, fed=not retry)
    with Following(plan, lambda: _send(plan, slurm)) if retry else nullcontext() as following:
        while True:
            code = watch(plan, slurm)
            if not done.waiting and not retry:
                return code
            done = submit(plan, executor, slurm, budget, lambda done, total, name: None, choice, say)
            if not done.jobs:
                return code
            if following:
                following.more_follows()
            _tell(done)


def _not_built(plan: Plan, directory: Path) -> str | None:
    """Say which environments are missing that no job of the plan builds: every cell would fail."""
    from hpcrl.environments.build import not_built

    if any(job.stage == "environments" for job in plan.jobs):
        return None
    if not (keys := not_built(plan.environments, plan.cluster["environments"])):
        return None
    return (
        f"not built, and no job of this plan builds them: {', '.join(keys)}: run `hpcrl env create --plan {directory}` first, or plan "
        "with --chain staged"
    )


def _send(plan: Path, slurm: Slurm) -> None:
    """Send the message that the last job of the chain left to this process."""
    from hpcrl.submit.notification import notify

    try:
        say(f"told {notify(plan, slurm)}")
    except HpcrlError as error:
        say(str(error))


def _tell(done: Submitted) -> None:
    echo(
        f"{count(done.tasks, 'cell')} submitted in {count(len(done.jobs), 'job')}"
        + (f"; {done.already} {'was' if done.already == 1 else 'were'} there already." if done.already else ".")
    )
    if done.waiting:
        echo(
            f"{count(done.waiting, 'cell')} {'follows' if done.waiting == 1 else 'follow'} when the queue has room: the last job of this part "
            "submits the next."
        )
    for reason, number in done.left.items():
        echo(f"  {count(number, 'cell')} not submitted: {reason}", err=True)
