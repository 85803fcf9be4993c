"""Play a trained agent where its environment can be made: in this Python, else in the software environment of its cell."""

from __future__ import annotations

import json
from pathlib import Path
from tempfile import TemporaryDirectory

from hpcrl.environments.build import is_built, root_of
from hpcrl.environments.commands import call
from hpcrl.errors import HpcrlError, UsageError
from hpcrl.formats.finding import find_cell
from hpcrl.formats.plan import WORKER, read_plan
from hpcrl.formats.worker import worker_zip
from hpcrl.rl.agents import load_agent
from hpcrl.rl.play import Played, VideoFile, play
from hpcrl.rl.video import check_name
from hpcrl.surroundings import expanded


def play_anywhere(
    file: Path, plan: Path | None = None, episodes: int = 10, seed: int = 0, wanted: VideoFile | None = None
) -> Played:
    """Play the agent of a file, as :func:`hpcrl.rl.play.play` does.

    Args:
        plan: the plan whose cell trained it. If a package is missing in this Python, the agent plays in that cell's software
            environment, if that is on this machine.

    Raises:
        UsageError: the file is not an agent, or it cannot play or be drawn here.
        HpcrlError: it cannot play there, or the video cannot be written.
    """
    agent = load_agent(file)
    if wanted:
        check_name(wanted.path)
    try:
        return play(agent, episodes, seed, wanted)
    except UsageError as error:
        python = None if plan is None else _python(plan, str(agent.origin.get("cell", "")))
        if python is None:
            raise
        try:
            return _play_with(python, file, episodes, seed, wanted)
        except HpcrlError as again:
            if str(error) in str(again):
                raise error from None
            raise HpcrlError(f"{error}; and {again}") from None


def filmed(file: Path, plan: Path, video: VideoFile) -> Played:
    """Film one episode of an agent, as :func:`play_anywhere` plays it: for the videos of a report."""
    return play_anywhere(file, plan, 1, 0, video)


def _play_with(python: Path, file: Path, episodes: int, seed: int, wanted: VideoFile | None) -> Played:
    words: list[str | Path] = [python, "-m", "hpcrl.rl.play", file.resolve()]
    words += ["--episodes", str(episodes), "--seed", str(seed)]
    if wanted:
        words += ["--video", wanted.path.resolve(), "--side", str(wanted.side), "--seconds", str(wanted.seconds)]
        words += ["--rate", str(wanted.rate)]
    with TemporaryDirectory(prefix="hpcrl-play-") as place:
        worker = Path(place) / WORKER
        worker.write_bytes(worker_zip())
        said = call(words, extra={"PYTHONPATH": str(worker)}, failed=f"in {python.parent.parent}")
    return Played(**json.loads(said.splitlines()[-1]))


def _python(directory: Path, cell: str) -> Path | None:
    """Return the Python of a cell's software environment; None if it is not on this machine."""
    plan = read_plan(directory)
    try:
        chosen, job, _ = find_cell(directory, plan, cell, older=True)
        if (surroundings := plan.study.surroundings) and surroundings.path:
            path = expanded(surroundings.path)
        else:
            path = root_of(plan.cluster.environments) / str(job.environment or chosen.environment)
            if not is_built(path, plan.cluster.environments.get("owners", ())):
                return None
    except UsageError:
        return None
    python = path / "bin/python"
    return python if python.is_file() else None
