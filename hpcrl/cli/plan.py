"""hpcrl plan, hpcrl plan diff."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from hpcrl.chains import CHAINS, Chain
from hpcrl.cli.common import DEFAULT_PLAN, echo, echo_json, json_option, path_option, say
from hpcrl.cli.completion import library_names
from hpcrl.errors import amount, count


class _PlanGroup(click.Group):
    """`hpcrl plan` itself plans; `hpcrl plan diff A B` compares."""


@click.group(
    "plan",
    cls=_PlanGroup,
    invoke_without_command=True,
    epilog="Example: hpcrl plan --cluster sol --study sol-dqn -o sol-plan",
)
@click.option(
    "--cluster",
    default="workstation",
    shell_complete=library_names("clusters"),
    show_default=True,
    help="Cluster profile: a name, or a YAML file.",
)
@click.option(
    "--study",
    shell_complete=library_names("jobs"),
    help="Study: a name, or a YAML file.  [default: the study of the profile]",
)
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    help=f"Plan directory to create.  [default: {DEFAULT_PLAN}]",
)
@click.option("--account", help="Account to charge. Also $HPCRL_ACCOUNT, or the settings file.")
@click.option("--email", help="Address for Slurm's e-mails at the end of jobs.")
@click.option("--environments-root", help="Directory of the software environments, instead of the profile's.")
@click.option(
    "--chain",
    type=click.Choice(CHAINS),
    help="Order of the jobs, instead of the study's.",
)
@click.option(
    "--precise-phases", is_flag=True, help="Wait for the device after every update: exact phases, slower runs."
)
@click.option(
    "--cells-per-task",
    type=click.IntRange(1),
    metavar="N",
    help="Run N cells one after another in each array task.  [default: as many as the site's limits require]",
)
@click.option(
    "--reuse",
    multiple=True,
    type=click.Path(path_type=Path),
    metavar="OTHER",
    help="Leave out the cells that this plan or dataset has completed. May be repeated.",
)
@click.option("--notify", metavar="COMMAND|URL", help="Receiver of the summary (JSON) at the end.")
@click.option(
    "--set",
    "settings",
    multiple=True,
    metavar="KEY=VALUE",
    help="Replace a value of the study, such as resources.time=02:00:00 or seeds=10. May be repeated.",
)
@click.option("--strict", is_flag=True, help="Fail if a cell has no place on the cluster.")
@click.option("--allow-retired", is_flag=True, help="Plan for a cluster that was switched off.")
@click.option("--dry-run", is_flag=True, help="Write nothing.")
@json_option
@path_option
@click.pass_context
def command(
    ctx: click.Context,
    cluster: str,
    study: str | None,
    output: Path | None,
    account: str | None,
    email: str | None,
    environments_root: str | None,
    chain: Chain | None,
    precise_phases: bool,
    cells_per_task: int | None,
    reuse: tuple[Path, ...],
    notify: str | None,
    settings: tuple[str, ...],
    strict: bool,
    allow_retired: bool,
    dry_run: bool,
    as_json: bool,
    paths: tuple[Path, ...],
) -> None:
    """Make a plan directory from a study and a cluster: one script per job, cells, environments.

    The same inputs give the same bytes. Cells without a place on the cluster are listed with the reason. An existing plan of
    the same study and cluster gets its next generation.
    """
    if ctx.invoked_subcommand:
        return
    from hpcrl import api

    directory = output or DEFAULT_PLAN
    planned = api.plan(
        study,
        cluster,
        directory,
        settings=settings,
        account=account,
        email=email,
        environments_root=environments_root,
        chain=chain,
        precise_phases=precise_phases,
        cells_per_task=cells_per_task,
        reuse=reuse,
        notify=notify,
        strict=strict,
        allow_retired=allow_retired,
        dry_run=dry_run,
        extend=output is not None or not dry_run,
        path=paths,
        say=say,
    )
    plan = planned.plan
    if as_json:
        echo_json(
            {
                "id": plan.id,
                "directory": None if dry_run else str(directory),
                "generation": plan.generation,
                "totals": plan.totals,
                "notes": planned.notes,
                "reused": plan.reused,
                "unplaced": [
                    {**vars(unplaced), "where": where}
                    for unplaced, where in zip(plan.unplaced, planned.unplaced_at, strict=True)
                ],
            }
        )
        return
    _summary(plan, planned.notes, planned.unplaced_at)
    if dry_run:
        echo("Nothing was written (--dry-run).")
    elif planned.written:
        echo(f"Plan written to {directory}. Next: hpcrl submit {directory}")
    else:
        echo(f"{directory} already contains this plan. Next: hpcrl submit {directory}")


def _summary(plan: Any, notes: Sequence[str], unplaced_at: Sequence[str]) -> None:
    from hpcrl.formats.labels import label

    totals = plan.totals
    echo(
        f"{plan.study.name} on {plan.cluster.title}: {count(totals['cells'], 'cell')} in {count(totals['jobs'], 'job')}, chain {plan.chain}"
    )
    for job in plan.cell_jobs():
        asked = job.resources
        gpus = ""
        if number := asked.get("gpus"):
            kind = asked.get("gpu_type")
            gpus = f", {number} {kind}" if kind else f", {count(number, 'GPU')}"
        between = "ranks on" if asked.get("overcommit") else "x"
        tasks = f"{asked['tasks']} {between} " if asked.get("tasks", 1) > 1 else ""
        where = job.partition + (f"/{job.qos}" if job.qos else "")
        echo(
            f"  {job.name}: {count(job.count, 'cell')} of {tasks}{count(asked['cpus'], 'core')}{gpus} in {where} ({job.node_type})"
        )
    billed = f", {amount(totals['billed'])} {totals['billing_unit']}" if totals["billing_unit"] else ""
    echo(
        f"At most {amount(totals['core_hours'])} core-hours, {amount(totals['gpu_hours'])} GPU-hours{billed} (if every cell runs until its time limit)."
    )
    for note in notes:
        echo(f"{note[:1].upper()}{note[1:]}.")
    if plan.reused:
        where = ", ".join(sorted(set(plan.reused.values())))
        echo(f"{count(len(plan.reused), 'cell')} left out: completed in {where}.")
    if plan.unplaced:
        echo(f"{count(totals['unplaced'], 'cell')} {'has' if totals['unplaced'] == 1 else 'have'} no place here:")
        grouped: dict[tuple[str, str, str | None], list[Any]] = {}
        for unplaced, where in zip(plan.unplaced, unplaced_at, strict=True):
            grouped.setdefault((where, unplaced.reason, unplaced.nearest), []).append(unplaced)
        for (where, reason, nearest), group in grouped.items():
            names = "; ".join(label(unplaced.config, plan.study.axes) or "all" for unplaced in group[:4])
            names += " ..." if len(group) > 4 else ""
            echo(f"  {where}: {reason}")
            echo(f"      cells: {sum(unplaced.cells for unplaced in group)} ({names})")
            echo(f"      nearest: {nearest or 'none'}")


@command.command("diff", epilog="Example: hpcrl plan diff plan-monday plan-friday")
@click.argument("first", type=click.Path(path_type=Path))
@click.argument("second", type=click.Path(path_type=Path))
def diff(first: Path, second: Path) -> int:
    """Show how two plans differ: cells, environments, scripts. Exit code 1 if they differ."""
    from hpcrl.plan.diff import diff_plans

    difference = diff_plans(first, second)
    for sign, names in (("-", difference.only_in_first), ("+", difference.only_in_second)):
        for name in names:
            echo(f"{sign} cell {name}")
    for line in (*difference.environments, *difference.scripts):
        echo(line)
    if not difference:
        echo("The plans run the same cells from the same scripts.")
    return 1 if difference else 0
