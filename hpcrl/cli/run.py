"""hpcrl run."""

from __future__ import annotations

import math
import os
import subprocess
from pathlib import Path

import click

from hpcrl.cli.common import DEFAULT_PLAN, echo
from hpcrl.cli.completion import cell_ids
from hpcrl.errors import HpcrlError, UsageError
from hpcrl.profilers import FROM, PROFILERS, STEPS


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
    help="Run the cell under a profiler. Unless it is the cell's own, this attempt does not complete the cell, and its times are compared with nothing.",
)
@click.option(
    "--profile-from",
    "begin",
    type=click.IntRange(0),
    help="The environment step at which the profiler begins.  [default: 0]",
)
@click.option(
    "--profile-steps",
    "steps",
    type=click.IntRange(0),
    help="For how many environment steps it looks; 0: until the training ends.  [default: 0]",
)
def command(
    plan: Path, cell: str, interval: float | None, profile: str | None, begin: int | None, steps: int | None
) -> int:
    """Run one cell on this machine, in its own environment, as its script does."""
    from hpcrl.environments.build import is_built, root_of
    from hpcrl.environments.standing import check_training
    from hpcrl.formats.finding import find_cell
    from hpcrl.formats.plan import read_plan
    from hpcrl.formats.profiles import check_profiler, check_window
    from hpcrl.searches import ROLE, TRIAL
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
    if chosen.config.get(ROLE) == TRIAL:
        raise UsageError(
            f"cell {chosen.id} is a trial of a search, which two attempts at once would report twice: run it with hpcrl submit {plan} --cell {chosen.id}"
        )
    window = {FROM: begin, STEPS: steps}
    if profile:
        own = expanded(surroundings.path) if surroundings and surroundings.path else None if surroundings else path
        check_profiler(profile, opened, chosen, own)
    check_window(profile, window, opened, chosen)
    environment = {
        **os.environ,
        **({PYTHONPATH: os.environ.get("PYTHONPATH", "")} if surroundings else {}),
        "PYTHONPATH": str((plan / opened.worker).resolve()),
        "PYTHONUNBUFFERED": "1",
        "HPCRL_ENV": str(path),
    }
    if trains_in or not surroundings:
        environment["PATH"] = f"{path / 'bin'}{os.pathsep}{environment.get('PATH', '')}"
    arguments = [path / "bin/python", "-P", "-m", "hpcrl.run", plan, "--cell", chosen.id]
    arguments += ["--ranks", chosen.asked.tasks, *(["--interval", interval] if interval else [])]
    arguments += ["--profile", profile] if profile else []
    for name, number in window.items():
        arguments += [f"--{name.replace('_', '-')}", number] if number is not None else []
    echo(f"running {chosen.id} in {path}", err=True)
    code = subprocess.run([str(argument) for argument in arguments], env=environment, check=False).returncode
    if code == 0:
        told = f"done; its record is in {plan / 'records'}: hpcrl collect {plan}"
        echo(f"{told}; its profile: hpcrl profile {plan} --cell {chosen.id}" if profile else told, err=True)
    return code
