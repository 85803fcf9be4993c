"""hpcrl play."""

from __future__ import annotations

from pathlib import Path

import click

from hpcrl.cli.common import DEFAULT_PLAN, echo, echo_json, json_option, print_table
from hpcrl.cli.completion import cell_ids
from hpcrl.errors import UsageError


@click.command("play", epilog="Example: hpcrl play plan --cell 3f2a --video episode.gif")
@click.argument("plan", type=click.Path(path_type=Path), default=DEFAULT_PLAN, metavar="[PLAN|FILE]")
@click.option("--cell", shell_complete=cell_ids, help="The cell whose agent plays: the beginning of its id.")
@click.option("--best", "which", flag_value="best", default="best", help="Its best agent by evaluation (the default).")
@click.option("--last", "which", flag_value="last", help="Its last agent.")
@click.option("--episodes", type=click.IntRange(1, 10_000), default=10, show_default=True, help="Episodes to play.")
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Seed of the starts of episodes.")
@click.option("--video", type=click.Path(path_type=Path), help="Write a video of the episodes: .gif or .mp4.")
@json_option
def command(
    plan: Path, cell: str | None, which: str, episodes: int, seed: int, video: Path | None, as_json: bool
) -> None:
    """Let the trained agent of a cell play in its environment, and print the returns.

    The agent is that of a cell of PLAN, or that of a file PLAN/agents/*.npz.
    """
    from hpcrl import api
    from hpcrl.formats.plan import read_plan

    if cell is None and (plan.is_dir() or not (plan.suffix or plan.exists())):
        read_plan(plan)  # or it is none
        raise UsageError(
            f"--cell is missing: give one of the cells that `hpcrl status {plan}` lists: hpcrl play {plan} --cell ID"
        )
    done = api.play(plan, cell, which=which, episodes=episodes, seed=seed, video=video)
    if as_json:
        echo_json({"returns": done.returns, "lengths": done.lengths})
        return
    rows = [[number, f"{value:g}", length] for number, (value, length) in enumerate(zip(done.returns, done.lengths, strict=True), 1)]  # fmt: skip
    print_table(["episode", "return", "steps"], rows)
    low, high, mean = min(done.returns), max(done.returns), sum(done.returns) / len(done.returns)
    echo(f"Mean return {mean:g}, from {low:g} to {high:g}.", err=True)
    if video:
        echo(f"Video of {'the first ' if done.cut else ''}{done.images} images: {video}", err=True)
