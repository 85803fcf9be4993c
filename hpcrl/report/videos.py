"""Videos of trained agents on the page: of each configuration the best and the median seed, and nothing is chosen by its looks."""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pandas as pd

from hpcrl.errors import HpcrlError
from hpcrl.formats.plan import agent_file, read_plan
from hpcrl.rl.agents import load_agent
from hpcrl.rl.play import Played, VideoFile

MOST = 24  # videos of a study
MOST_BYTES = 2 * 1024**2  # of one video
_SIDE, _SECONDS, _RATE = 200, 10.0, 10.0

# Plays an agent's file, whose cell is in that plan.
Player = Callable[[Path, Path, VideoFile], Played]


@dataclass(frozen=True)
class Clip:
    """A video: the configuration and its resources, which of its seeds (`best of 5 completed seeds`), that seed's score, and the episode.

    `source` is the GIF as a data URL.
    """

    what: str
    which: str
    seed: int
    score: float
    value: float
    steps: int
    cut: bool
    source: str


@dataclass(frozen=True)
class Clips:
    """The videos of a study, and why others are missing, in sentences."""

    clips: list[Clip]
    missing: list[str]


def clips(rows: pd.DataFrame, plans: Mapping[str, Sequence[Path]], play: Player) -> Clips:
    """Film one episode of the last agent of the chosen seeds: the agent whose score the report compares.

    Args:
        rows: attempts of a study with the columns of `with_groups`.
        plans: the directories of plans, by their ids.
    """
    films: list[Clip] = []
    missing: list[str] = []
    done = rows[(rows["outcome"] == "completed") & rows["final_score"].notna()]
    groups = done.groupby(["cluster", "what", "where"], sort=True)
    for number, ((cluster, what, where), cells) in enumerate(groups):
        picked = chosen(cells)
        if len(films) + len(picked) > MOST:
            missing.append(f"{len(groups) - number} more configurations: the page has at most {MOST} videos of a study")
            break
        several = done["cluster"].nunique() > 1
        name = f"{what} on {where}{f' ({cluster})' if several else ''}"
        for which, cell in picked:
            try:
                films.append(_clip(name, which, cell, plans, play))
            except HpcrlError as error:
                missing.append(f"{name}, {which} (seed {int(cell['seed'])}): {error}")
    return Clips(films, missing)


def chosen(cells: pd.DataFrame) -> list[tuple[str, Mapping[str, Any]]]:
    """Return the best and the median cell by their final score, with words for them. Of an even number, the lower median."""
    ranked: list[Mapping[str, Any]] = [
        {str(name): value for name, value in cell.items()}
        for cell in cells.sort_values(["final_score", "seed"], ascending=[False, True]).to_dict("records")
    ]
    count = len(ranked)
    if count == 1:
        return [("the only completed seed", ranked[0])]
    return [(f"best of {count} completed seeds", ranked[0]), (f"median of {count} completed seeds", ranked[count // 2])]


def _clip(name: str, which: str, cell: Mapping[str, Any], plans: Mapping[str, Sequence[Path]], play: Player) -> Clip:
    """Film an episode.

    Raises:
        HpcrlError: there is no such agent, or it cannot be filmed here.
    """
    if not (places := plans.get(cell["plan"])):
        raise HpcrlError(f"plan {cell['plan']} is not among those of --videos")
    # Copies of a plan have the agents of the cells that ran in them.
    plan = next((place for place in places if agent_file(place, cell["cell"], "last").exists()), places[0])
    file = agent_file(plan, cell["cell"], "last")
    if load_agent(file).origin.get("attempt") != cell["attempt"]:
        raise HpcrlError(f"{file}: is the agent of another attempt than the report's")
    with TemporaryDirectory(prefix="hpcrl-clip-") as place:
        video = VideoFile(Path(place) / "clip.gif", _SIDE, _SECONDS, _RATE)
        played = play(file, plan, video)
        data = video.path.read_bytes()
    if len(data) > MOST_BYTES:
        raise HpcrlError(f"its video has {len(data) / 2**20:.1f} MiB, and the maximum is {MOST_BYTES // 2**20} MiB")
    source = f"data:image/gif;base64,{base64.b64encode(data).decode()}"
    return Clip(
        name,
        which,
        int(cell["seed"]),
        float(cell["final_score"]),
        played.returns[0],
        played.lengths[0],
        played.cut,
        source,
    )


def plans_by_id(directories: tuple[Path, ...]) -> dict[str, list[Path]]:
    """Return plan directories by the ids of their plans, which copies share.

    Raises:
        UsageError: a directory is no plan.
    """
    plans: dict[str, list[Path]] = {}
    for directory in directories:
        plans.setdefault(read_plan(directory).id, []).append(directory)
    return plans
