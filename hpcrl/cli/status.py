"""hpcrl status."""

from __future__ import annotations

import json
import sys
from contextlib import AbstractContextManager, nullcontext
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hpcrl.cli.common import echo, json_option, plan_argument, print_table, say
from hpcrl.errors import UsageError, count, printable
from hpcrl.formats.memory import without_gc

if TYPE_CHECKING:
    from rich.live import Live

    from hpcrl.schedulers.states import TaskStatus
    from hpcrl.submit.status import CellStatus, PlanStatus

SHOWN = 40  # cells
CAUSES = 10
PATIENCE = 4.0  # seconds without an answer, after which the user gets a note


@click.command("status", epilog="Example: hpcrl status plan --watch")
@plan_argument
@click.option("--watch", "watching", is_flag=True, help="Show the state again and again until everything has ended.")
@click.option("--failed", "only_failed", is_flag=True, help="Only failed cells.")
@click.option(
    "--where", multiple=True, metavar="KEY=VALUE", help="Only cells of this configuration, such as framework=jax."
)
@json_option
def command(plan: Path, watching: bool, only_failed: bool, where: tuple[str, ...], as_json: bool) -> int:
    """Show the state of a plan, cell by cell. Exit code 1 if cells failed."""
    from hpcrl.slurm.client import Slurm, spoken
    from hpcrl.submit.status import plan_status

    slurm = Slurm()
    if watching and (only_failed or where):
        raise UsageError("--watch shows the whole plan: leave out --failed and --where")
    if watching:
        return int(is_failed(watch(plan)))
    slow = f"no answer for {PATIENCE:.0f} s: Slurm is busy, or another hpcrl uses the ledger of {plan}; still waiting"
    with without_gc():
        with spoken(say, slow, PATIENCE):
            status = plan_status(plan, slurm)
        chosen = status.places(only_failed, where) if only_failed or where else None
        if as_json:
            _echo_json(status, chosen)
        else:
            shown = _interesting(status) if chosen is None else status.pick(chosen[:SHOWN])
            print_table(["cell", "what", "state", "progress", "reason"], [_row(cell, status) for cell in shown])
            if chosen == []:
                echo("no cell matches", err=True)
            if chosen is None:
                _echo_rest(status, plan)
            elif len(chosen) > SHOWN:
                rest = count(len(chosen) - SHOWN, "more cell")
                echo(f"and {rest} more of {len(chosen)}: list all with --json", err=True)
            _echo_end(status, plan)
        return int(is_failed(status, ended=False))


def is_failed(status: PlanStatus, ended: bool = True) -> bool:
    """Tell whether cells or stages failed, or whether some have not ended after the plan was followed to its end."""
    from hpcrl.submit.details import is_failure

    if ended and status.live():
        return True
    return bool(status.failures) or any(is_failure(stage.state) for stage in status.stages.values())


def _interesting(status: PlanStatus) -> list[CellStatus]:
    """Choose the cells of a large plan to show: failed and running ones before waiting and finished ones."""
    from hpcrl.slurm.client import RUNNING

    failures = status.failures
    if not failures and not RUNNING & set(status.counts()):
        return status.pick(range(min(SHOWN, len(status.statuses))))
    ranks: list[list[int]] = [[], [], []]
    for number, task in enumerate(status.statuses):
        if len(ranks[0]) == SHOWN:
            break
        rank = ranks[0 if task.state in failures else 1 if task.state in RUNNING else 2]
        if len(rank) < SHOWN:
            rank.append(number)
    return status.pick([number for rank in ranks for number in rank][:SHOWN])


def _row(cell: CellStatus, status: PlanStatus) -> list[Any]:
    progress = f"{100 * cell.progress[0] // max(1, cell.progress[1])} %" if cell.progress else ""
    return [
        cell.cell.id,
        _what(cell, status),
        cell.status.state.lower(),
        progress,
        cell.status.reason or "",
    ]


def _what(cell: CellStatus, status: PlanStatus) -> str:
    """Name a cell by its configuration and by the resources in which the plan's cells differ."""
    from hpcrl.formats.labels import label, label_of_resources

    asked = label_of_resources(cell.cell.resources, status.differing)
    return " ".join(filter(None, (label(cell.cell.config, status.plan.study.axes), asked)))


def _echo_rest(status: PlanStatus, plan: Path) -> None:
    """Print how many cells the table leaves out."""
    shown, failed = min(SHOWN, len(status.statuses)), len(status.failed())
    if rest := len(status.statuses) - shown:
        of_them = f" ({failed - shown} of them did not complete)" if failed > shown else ""
        echo(f"and {count(rest, 'more cell')}{of_them}: `hpcrl status {plan} --json` lists all", err=True)


def _echo_end(status: PlanStatus, plan: Path) -> None:
    counts = status.counts()
    told = ", ".join(f"{number} {state.lower()}" for state, number in counts.items())
    stages = "".join(_stage(stage, task) for stage, task in status.stages.items())
    echo(f"{count(sum(counts.values()), 'cell')}: {told}{stages}")
    causes = list(status.causes().items())
    for reason, number in [*causes[:CAUSES], *status.unsettled().items()]:
        echo(f"  {number} x {reason}", err=True)
    if (rest := len(causes) - CAUSES) > 0:
        echo(f"  and {count(rest, 'more cause')}: `hpcrl status {plan} --json` lists all", err=True)
    for note in status.notes:
        say(note)


def _echo_json(status: PlanStatus, chosen: list[int] | None = None) -> None:
    """Print the plan's state, one cell per line, without all of it in memory."""
    facts = {
        "plan": status.plan.id,
        "counts": status.counts(),
        "stages": {stage: task.state for stage, task in status.stages.items()},
        "causes": status.causes(),
        "notes": status.notes,
    }
    out = sys.stdout
    out.write(printable(json.dumps(facts, ensure_ascii=False))[:-1] + ', "cells": [')
    separator = "\n"
    lines = status.lines(None if chosen is None else {status.names[place] for place in chosen})
    while some := ",\n".join(islice(lines, 1000)):
        out.write(separator + printable(some))
        separator = ",\n"
    out.write("\n]}\n")


def watch(plan: Path) -> PlanStatus:
    """Show a plan's progress until everything has ended, and return its state."""
    from hpcrl.api import follow

    said = ""
    with _live_screen() as screen:
        for status in follow(plan):
            if screen:
                screen.update(_screen(status))
            elif status.live() and (line := _line(status)) != said:
                echo(line)
                said = line
    _echo_end(status, plan)
    return status


def _live_screen() -> AbstractContextManager[Live | None]:
    if not sys.stdout.isatty():
        return nullcontext()
    from rich.live import Live

    return Live(refresh_per_second=4)


def _line(status: PlanStatus) -> str:
    done = ", ".join(f"{number} {state.lower()}" for state, number in status.counts().items())
    return done + "".join(_stage(stage, task) for stage, task in status.stages.items() if task.state == "RUNNING")


def _stage(stage: str, task: TaskStatus) -> str:
    """Name a stage's state, with the last line of its log while it runs, or that it is being cancelled."""
    from hpcrl.schedulers.states import BEING_CANCELLED

    tells = task.reason if task.state == "RUNNING" or task.reason == BEING_CANCELLED else None
    return f"; {stage} {task.state.lower()}" + (f" ({tells})" if tells else "")


def _screen(status: PlanStatus) -> Any:
    from rich import box
    from rich.console import Group
    from rich.progress_bar import ProgressBar
    from rich.table import Table
    from rich.text import Text

    from hpcrl.schedulers.states import COMPLETED
    from hpcrl.submit.details import is_failure

    table = Table(box=box.SIMPLE_HEAD)
    for column in ("cell", "what", "state", "progress"):
        table.add_column(column)
    for cell in _interesting(status):
        state = cell.status.state
        style = (
            "green" if state == COMPLETED else "red" if is_failure(state) else "cyan" if state == "RUNNING" else "dim"
        )
        fraction = 1.0 if state == COMPLETED else cell.progress[0] / max(1, cell.progress[1]) if cell.progress else 0.0
        table.add_row(
            Text(printable(cell.cell.id)),
            Text(printable(_what(cell, status))),
            Text(state.lower(), style=style),
            ProgressBar(total=1.0, completed=fraction, width=30),
        )
    stages = "  ".join(f"{stage}: {task.state.lower()}" for stage, task in status.stages.items())
    return Group(table, Text(printable(_line(status)), style="bold"), Text(printable(stages), style="dim"))
