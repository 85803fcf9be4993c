"""hpcrl submit."""

from __future__ import annotations

import shutil
from pathlib import Path

import click

from hpcrl.cli.common import count, echo_json, json_option, plan_argument, progress
from hpcrl.errors import HpcrlError


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
@click.option("--max-core-hours", type=float, help="Refuse a plan that may use more.")
@click.option("--max-gpu-hours", type=float, help="Refuse a plan that may use more.")
@click.option("--wait", is_flag=True, help="Show progress until everything has ended.")
@json_option
def command(
    plan: Path,
    executor: str,
    only_test: bool,
    max_core_hours: float | None,
    max_gpu_hours: float | None,
    wait: bool,
    as_json: bool,
) -> int:
    """Submit what was never submitted, or failed. Doing it twice submits nothing twice; this process may end."""
    from hpcrl.formats.plan import read_plan
    from hpcrl.slurm.client import Slurm
    from hpcrl.submit.submission import Budget, submit, test_only

    opened = read_plan(plan)
    if executor == "auto":
        executor = "slurm" if opened.cluster["scheduler"]["kind"] == "slurm" else "local"
    if executor == "slurm" and not shutil.which("sbatch"):
        raise HpcrlError(
            f"the plan is for {opened.cluster['title']}, and there is no sbatch here: copy {plan} to a login node, or use --executor local"
        )
    slurm = Slurm()
    if only_test:
        objections = test_only(plan, slurm)
        if as_json:
            echo_json(objections)
        else:
            for script, objection in objections.items():
                click.echo(f"{script}: {objection or 'would be taken'}")
        return 1 if any(objections.values()) else 0
    with progress("submitting") as advance:
        done = submit(
            plan,
            executor,
            slurm,
            Budget(max_core_hours, max_gpu_hours),
            lambda done, total, name: advance(done, total),
        )
    if as_json:
        echo_json({"submitted": done.tasks, "already": done.already, "jobs": [list(each) for each in done.jobs]})
    else:
        click.echo(
            f"{count(done.tasks, 'cell')} submitted in {count(len(done.jobs), 'job')}"
            + (f"; {done.already} were there already." if done.already else ".")
        )
        if not wait:
            click.echo(f"Follow them: hpcrl status {plan} --watch")
    if wait:
        from hpcrl.cli.status import watch

        return watch(plan, slurm)
    return 0
