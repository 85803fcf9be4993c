"""hpcrl run."""

from __future__ import annotations

import math
import os
import subprocess
from pathlib import Path

import click

from hpcrl.cli.common import DEFAULT_PLAN, echo
from hpcrl.cli.completion import cell_ids
from hpcrl.errors import HpcrlError
from hpcrl.profilers import PROFILERS


def _finite(context: click.Context, parameter: click.Parameter, value: float | None) -> float | None:
    if value is not None and not math.isfinite(value):
        raise click.BadParameter("expected a number from 0.05 to 3600")
    return value


@click.command("run", epilog="Example: hpcrl run plan --cell 3f2a")
@click.argument("plan", type=click.Path(path_type=Path), default=DEFAULT_PLAN, metavar="[PLAN]")
@click.option("--cell", required=True, shell_complete=cell_ids, help="The cell to run: the beginning of its id.")
@click.option(
    "--interval",
    type=click.FloatRange(0.05, 3600),
    callback=_finite,
    help="Seconds between samples, instead of the study's.",
)
@click.option(
    "--profile",
    type=click.Choice(list(PROFILERS)),
    help="Run the cell under a profiler. This attempt does not complete the cell, and its times are compared with nothing.",
)
def command(plan: Path, cell: str, interval: float | None, profile: str | None) -> int:
    """Run one cell on this machine, in its own environment, as its script does."""
    from hpcrl.environments.build import is_built, root_of
    from hpcrl.environments.standing import check_training
    from hpcrl.formats.finding import find_cell
    from hpcrl.formats.plan import read_plan
    from hpcrl.formats.profiles import check_profiler
    from hpcrl.surroundings import PYTHONPATH, expanded, fault

    opened = read_plan(plan)
    chosen, job, _ = find_cell(plan, opened, cell)
    site = opened.cluster.environments
    surroundings = opened.study.surroundings
    trains_in = surroundings.path if surroundings and not opened.runs_command else None
    if trains_in:
        if surroundings and (wrong := fault(surroundings)):
            raise HpcrlError(wrong)
        path = expanded(trains_in)
        check_training(path)
    else:
        path = root_of(site) / str(job.environment)
        if not is_built(path, site.get("owners", ())):
            raise HpcrlError(f"{path}: the environment was not built: run hpcrl env create --plan {plan}")
    if profile:
        own = expanded(surroundings.path) if surroundings and surroundings.path else None if surroundings else path
        check_profiler(profile, opened, chosen, own)
    environment = {
        **os.environ,
        **({PYTHONPATH: os.environ.get("PYTHONPATH", "")} if surroundings else {}),
        "PYTHONPATH": str((plan / opened.worker).resolve()),
        "PYTHONUNBUFFERED": "1",
        "HPCRL_ENV": str(path),
    }
    if trains_in or not surroundings:
        environment["PATH"] = f"{path / 'bin'}{os.pathsep}{environment.get('PATH', '')}"
    arguments = [path / "bin/python", "-m", "hpcrl.run", plan, "--cell", chosen.id]
    arguments += ["--ranks", chosen.asked.tasks, *(["--interval", interval] if interval else [])]
    arguments += ["--profile", profile] if profile else []
    echo(f"running {chosen.id} in {path}", err=True)
    code = subprocess.run([str(argument) for argument in arguments], env=environment, check=False).returncode
    if code == 0:
        told = f"done; its record is in {plan / 'records'}: hpcrl collect {plan}"
        echo(f"{told}; its profile: hpcrl profile {plan} --cell {chosen.id}" if profile else told, err=True)
    return code
