"""Play a trained agent in its environment: greedy episodes, their returns, and a video of them.

``python -m hpcrl.rl.play FILE`` is what `hpcrl play` calls in an environment that has the agent's packages. It prints JSON.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from hpcrl.errors import HpcrlError, UsageError
from hpcrl.rl.agents import Agent, load_agent
from hpcrl.rl.envs.drawing import DRAWINGS, Image
from hpcrl.rl.envs.make import gymnasium_environment
from hpcrl.rl.envs.offscreen import cannot_draw, choose_gl, is_mujoco
from hpcrl.rl.evaluation import start_seeds
from hpcrl.rl.video import MOST_PER_SECOND, Video, check_name

_STREAM = 7  # of a seed, for the starts of episodes that are played
MOST_EPISODES = 10_000


@dataclass(frozen=True)
class VideoFile:
    """How a video is made: its file, the pixels of its longer side, its seconds at most, and its images per second at most."""

    path: Path
    side: int = 320
    seconds: float = 60.0
    rate: float = MOST_PER_SECOND


@dataclass(frozen=True)
class Played:
    """Returns and lengths of the episodes, in their order. `images` is the number of images of the video, and `cut` tells whether it
    ends before the episodes do."""

    returns: list[float]
    lengths: list[int]
    images: int = 0
    cut: bool = False


def play(agent: Agent, episodes: int = 10, seed: int = 0, wanted: VideoFile | None = None) -> Played:
    """Play greedy episodes, and write the `wanted` video of them. A seed has the same starts for every agent.

    Raises:
        UsageError: the environment cannot be made here, is another one than the agent's, or cannot be drawn.
        HpcrlError: the video cannot be written.
    """
    if not 1 <= episodes <= MOST_EPISODES:
        raise UsageError(f"expected 1 to {MOST_EPISODES:,} episodes, got {episodes}")
    if seed < 0:
        raise UsageError(f"expected a seed of at least 0, got {seed}")
    if wanted:
        check_name(wanted.path)
    environment = _environment(agent, bool(wanted))
    video, shoot = None, _nothing
    if wanted:
        video = Video(float(environment.metadata.get("render_fps") or 30), wanted.side, wanted.seconds, wanted.rate)
        shoot = partial(_shoot, video, environment, agent.environment)
    try:
        played = [_episode(agent, environment, start, shoot) for start in start_seeds(seed, _STREAM, episodes)]
    finally:
        environment.close()
    if video is not None and wanted:
        video.write(wanted.path)
    returns, lengths = [value for value, _ in played], [length for _, length in played]
    return Played(returns, lengths, len(video) if video is not None else 0, video is not None and video.cut)


def _environment(agent: Agent, drawn: bool) -> Any:
    name = agent.environment
    make = partial(gymnasium_environment, name, agent.max_episode_steps, agent.options)
    if drawn and is_mujoco(name) and find_spec("mujoco"):
        choose_gl()  # before mujoco is imported
    try:
        environment = make()
    except ImportError as error:
        first = str(error).partition(". ")[0].rstrip(".")  # Gymnasium adds two sentences
        raise UsageError(f"environment {name}: {first}: install the package that has it") from None
    space = agent.algorithm.space
    shape, taken = environment.observation_space.shape or (), environment.action_space
    actions = math.prod(taken.shape) if space.continuous else getattr(taken, "n", None)
    if math.prod(shape) != space.inputs or actions != space.actions:
        raise UsageError(
            f"environment {name}: has observations of {math.prod(shape)} values and {actions} actions here, but the agent was trained with "
            f"{space.inputs} and {space.actions}"
        )
    if not drawn:
        return environment
    if "rgb_array" not in environment.metadata.get("render_modes", ()):
        raise UsageError(f"environment {name}: has no drawing: play it without a video")
    environment.close()
    return make(drawn=True)


def _image(environment: Any, name: str) -> Image:
    """Draw what the environment shows now."""
    import gymnasium

    try:
        image = environment.render()
    except gymnasium.error.DependencyNotInstalled as error:
        if name not in DRAWINGS:
            raise UsageError(f"environment {name}: cannot be drawn here: {' '.join(str(error).split())}") from None
        image = DRAWINGS[name](environment.unwrapped)
    except Exception as error:  # each GL library fails in its own way
        if not is_mujoco(name):
            raise
        raise cannot_draw(" ".join(str(error).split()) or type(error).__name__) from None
    if getattr(image, "ndim", 0) != 3:
        raise UsageError(f"environment {name}: its drawing is not an image: play it without a video")
    drawn: Image = image
    return drawn


def _nothing() -> None:
    """Draw nothing."""


def _shoot(video: Video, environment: Any, name: str) -> None:
    if not video.cut:
        video.add(_image(environment, name))


def _episode(agent: Agent, environment: Any, seed: int, shoot: Callable[[], None]) -> tuple[float, int]:
    """Play one episode; return its return and its length."""
    observation, _ = environment.reset(seed=seed)
    value, length, over = 0.0, 0, False
    while not over:
        shoot()
        observation, reward, terminated, truncated, _ = environment.step(agent.act(observation))
        value += float(reward)
        length += 1
        over = terminated or truncated
    shoot()
    return value, length


def main(arguments: list[str]) -> int:
    """Play the agent of a file, print what was found as JSON, and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m hpcrl.rl.play", description="Play a trained agent.")
    parser.add_argument("file", type=Path)
    parser.add_argument("--episodes", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--video", type=Path)
    parser.add_argument("--side", type=int, default=VideoFile.side)
    parser.add_argument("--seconds", type=float, default=VideoFile.seconds)
    parser.add_argument("--rate", type=float, default=VideoFile.rate)
    options = parser.parse_args(arguments)
    wanted = VideoFile(options.video, options.side, options.seconds, options.rate) if options.video else None
    try:
        print(json.dumps(asdict(play(load_agent(options.file), options.episodes, options.seed, wanted))))
    except HpcrlError as error:
        print(f"hpcrl: {error}", file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
