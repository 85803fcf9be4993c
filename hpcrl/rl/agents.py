"""Trained agents: the weights that act, the scale of their observations, and what they were trained for, in one NumPy archive.

The arrays of a file, which needs no pickle::

    weights/<name>                      float32, by hpcrl's names: (out, in), (out,); of convolutions (out, in, kernel, kernel)
    moments/mean, variance, count       of observations, if the agent sees them normalised
    space/low, space/high               the bounds of continuous actions (actions,)
    environment/low, high               the environment's own bounds, if the agent's actions from -1 to 1 are stretched to them
    facts                               JSON: format, version, algorithm, settings, space, environment, step, score, origin

An agent acts by the algorithm's NumPy specification, whatever framework trained it.
"""

from __future__ import annotations

import importlib
import json
import lzma
import math
import os
import tokenize
import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcrl.catalogue.fields import check
from hpcrl.catalogue.images import side_of
from hpcrl.catalogue.registry import algorithms
from hpcrl.errors import HpcrlError, UsageError, suggestion
from hpcrl.formats.files import open_of_stranger
from hpcrl.formats.finding import find_cell
from hpcrl.formats.plan import Cell, Plan, agent_file, read_plan
from hpcrl.rl import checkpoint
from hpcrl.rl.envs.bounded import stretched
from hpcrl.rl.interfaces import Algorithm, Space, Weights
from hpcrl.rl.loops.acting import NumpyActor
from hpcrl.rl.normalization import Moments, centred
from hpcrl.rl.weights import initial_weights

FORMAT, VERSION = "hpcrl-agent", 1
WHICH = ("best", "last")
MOST_BYTES = 64 * 1024**2  # of an agent's arrays
_HEADS = 1024**2  # bytes of the rest of a file: names, headers, facts


@dataclass(frozen=True)
class Agent:
    """A trained agent.

    Args:
        algorithm: with the space and the settings of its training.
        weights: those that it acts with.
        moments: those of the observations by which it sees them; None: it sees them as they are.
        environment: the name of the environment of its training, which has `options`, and episodes of at most
            `max_episode_steps` (None: the environment's own limit).
        step: the environment steps after which it was evaluated.
        score: the mean return of that evaluation; None: not known.
        origin: plain facts for a reader: study, cell, attempt, seed, framework, ...
        stretched: the environment's lowest and highest actions (actions,), if the policy's go from -1 to 1 instead.
    """

    algorithm: Algorithm
    weights: Weights
    moments: Moments | None
    environment: str
    options: Mapping[str, Any] = field(default_factory=dict)
    max_episode_steps: int | None = None
    step: int = 0
    score: float | None = None
    origin: Mapping[str, Any] = field(default_factory=dict)
    stretched: tuple[NDArray[np.float32], NDArray[np.float32]] | None = None

    def act(self, observation: Any) -> Any:
        """Return the greedy action of an observation, or the actions (n, ...) of n observations.

        An observation has the shape that the environment gives it; images may be flat, too. A discrete action of one observation is
        an `int`, a continuous one is a float32 array (actions,).

        Raises:
            UsageError: the observation has another shape.
        """
        space, given = self.algorithm.space, np.asarray(observation)
        shapes: list[tuple[int, ...]] = [(space.inputs,)]
        if space.channels:
            side = side_of(space.inputs, space.channels)
            shapes.append((side, side, space.channels))
        if given.shape not in shapes and given.shape[1:] not in shapes:
            known = " or ".join(map(str, shapes))
            raise UsageError(f"expected an observation of shape {known}, or several, got shape {given.shape}")
        rows = given.reshape(-1, space.inputs).astype(space.dtype)
        if self.moments is not None:
            rows = centred(rows, self.moments)
        actions = self._actor.act(rows)
        if self.stretched is not None:
            actions = stretched(*self.stretched)(actions)
        if given.shape not in shapes:
            return actions
        return actions[0] if space.continuous else int(actions[0])

    @cached_property
    def _actor(self) -> NumpyActor:
        actor = NumpyActor(self.algorithm)
        actor.load(self.weights)
        return actor

    @property
    def size(self) -> int:
        """Return the bytes of its weights."""
        return sum(array.nbytes for array in self.weights.values())

    def save(self, path: str | Path) -> None:
        """Write it to a file, completely or not at all.

        Raises:
            HpcrlError: it is larger than :data:`MOST_BYTES`, or the file cannot be written.
        """
        path = Path(path)
        if self.size > MOST_BYTES:
            raise HpcrlError(
                f"{path}: was not written: the agent has {self.size / 2**20:.0f} MiB of weights, and the maximum is {MOST_BYTES // 2**20} MiB"
            )
        space = self.algorithm.space
        arrays = checkpoint.nested("weights", self.weights)
        if self.moments is not None:
            parts = {name: np.asarray(value) for name, value in self.moments._asdict().items()}
            arrays |= checkpoint.nested("moments", parts)
        if space.bounds:
            low, high = (np.array(side, np.float64) for side in zip(*space.bounds, strict=True))
            arrays |= {"space/low": low, "space/high": high}
        if self.stretched is not None:
            arrays |= dict(zip(_STRETCHED, self.stretched, strict=True))
        facts = {
            "format": FORMAT,
            "version": VERSION,
            "algorithm": self.algorithm.name,
            "settings": asdict(self.algorithm.settings),
            "space": {name: getattr(space, name) for name in _SPACE},
            "environment": self.environment,
            "options": dict(self.options),
            "max_episode_steps": self.max_episode_steps,
            "step": self.step,
            "score": self.score if self.score is None or math.isfinite(self.score) else None,
            "origin": dict(self.origin),
        }
        try:
            checkpoint.save(path, arrays, facts)
        except OSError as error:
            raise HpcrlError(f"{path}: cannot be written: {error.strerror}; no half-written file was left") from None


# What zip archives, NumPy's headers and JSON raise where they are damaged; RuntimeError: an archive that is encrypted; MemoryError: a header with a
# huge array.
_DAMAGED = (
    zipfile.BadZipFile, zlib.error, lzma.LZMAError, tokenize.TokenError, ValueError, KeyError, TypeError, EOFError, RuntimeError, OverflowError,
    MemoryError,
)  # fmt: skip
_STRETCHED = ("environment/low", "environment/high")
_SPACE = ("inputs", "actions", "channels", "limit")


def load_agent(path: Path) -> Agent:
    """Read an agent. The file may come from anybody: it can build nothing but arrays and plain facts.

    Raises:
        UsageError: it cannot be read, is not an agent, or this hpcrl does not have its algorithm.
    """
    try:
        return _agent(*_read(path))
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror or 'it is damaged'}") from None
    except UsageError as error:
        raise UsageError(f"{path}: {error}") from None
    except _DAMAGED:
        raise UsageError(f"{path}: is not an agent that hpcrl saved, or it is damaged") from None


def _read(path: Path) -> tuple[checkpoint.NamedArrays, dict[str, Any]]:
    with open_of_stranger(path, "rb", most=MOST_BYTES + _HEADS) as file:
        # An archive may unfold to more than its own size.
        if sum(entry.file_size for entry in zipfile.ZipFile(file).infolist()) > MOST_BYTES + _HEADS:
            raise UsageError(f"holds more than {MOST_BYTES // 2**20} MiB, which no agent of hpcrl does")
        file.seek(0)
        with np.load(file, allow_pickle=False) as archive:
            arrays = {name: archive[name] for name in archive.files}
    facts = json.loads(arrays.pop("facts").tobytes())
    if facts["format"] != FORMAT:
        raise ValueError("it is something else")
    if facts["version"] != VERSION:
        raise UsageError(f"has agent format {facts['version']}, but this hpcrl reads format {VERSION}: use that hpcrl")
    return arrays, facts


def _agent(arrays: checkpoint.NamedArrays, facts: dict[str, Any]) -> Agent:
    name = facts["algorithm"]
    if name not in algorithms():
        raise UsageError(f"has the algorithm {name!r}, which this hpcrl lacks; {suggestion(str(name), algorithms())}")
    sizes = {key: facts["space"][key] for key in _SPACE}
    if any(type(sizes[key]) is not int or sizes[key] < 0 for key in _SPACE[:3]):
        raise ValueError("sizes are whole numbers")
    bounds = tuple(zip(arrays["space/low"].tolist(), arrays["space/high"].tolist(), strict=True)) if "space/low" in arrays else ()  # fmt: skip
    space = Space(**sizes, bounds=bounds)
    settings = check(name, algorithms()[name].settings, facts["settings"])
    algorithm: Algorithm = importlib.import_module(f"hpcrl.rl.algorithms.{name}").algorithm(space, settings)
    weights = {key: array.astype(np.float32) for key, array in checkpoint.part("weights", arrays).items()}
    _check_weights(algorithm, weights)
    moments = checkpoint.part("moments", arrays)
    scale = Moments(**moments) if moments else None
    if scale is not None and (scale.mean.shape, scale.variance.shape) != ((space.inputs,), (space.inputs,)):
        raise ValueError("the moments are those of other observations")
    wide = (arrays[_STRETCHED[0]], arrays[_STRETCHED[1]]) if _STRETCHED[0] in arrays else None
    if wide is not None and any(array.shape != (len(bounds),) for array in wide):
        raise ValueError("the environment has other actions")
    step, score = int(facts["step"]), facts["score"]
    limit = facts["max_episode_steps"]
    if limit is not None and (type(limit) is not int or limit < 1):
        raise ValueError("a limit of steps is a whole number")
    known: dict[str, Any] = {"options": dict(facts["options"]), "max_episode_steps": limit}
    origin = dict(facts["origin"])
    environment = str(facts["environment"])
    return Agent(algorithm, weights, scale, environment, **known, step=step, score=score, origin=origin, stretched=wide)


def _check_weights(algorithm: Algorithm, weights: Mapping[str, NDArray[Any]]) -> None:
    networks = algorithm.groups[algorithm.acts_with]
    least = sum(math.prod(shape) for network in networks for shape in network.shapes)
    # Checked first, so that settings alone cannot ask for much memory.
    if least > sum(array.size for array in weights.values()):
        raise ValueError("the settings are those of a larger network")
    expected = initial_weights(algorithm, np.random.default_rng(0))[algorithm.acts_with]
    if {name: array.shape for name, array in weights.items()} != {
        name: weight.shape for name, weight in expected.items()
    }:
        raise ValueError("the weights are those of another network")


def find_agent(directory: Path, cell: str, which: str = "best") -> Path:
    """Return the file of the agent of a cell of a plan; `cell` is the beginning of its id.

    Raises:
        UsageError: there is no such cell, or it has no such agent.
    """
    if which not in WHICH:
        raise UsageError(f"no {which!r} agent; {suggestion(which, WHICH)}")
    plan = read_plan(directory)
    found, _, _ = find_cell(directory, plan, cell, older=True)
    path = agent_file(directory, found.id, which)
    if not os.path.lexists(path):
        raise UsageError(f"cell {found.id} of {directory} has no agent: {_why_none(plan, found)}")
    return path


def _why_none(plan: Plan, cell: Cell) -> str:
    if plan.runs_command:
        return "it runs a command, and hpcrl keeps agents of built-in training only"
    algorithm = algorithms().get(plan.workload_of(cell.config))
    if algorithm and not algorithm.learns:
        return f"{algorithm.title} has no weights"
    if plan.study.agents == "none":
        return "its study says `agents: none`: plan without that, and run the cell again"
    return "it has not been run up to its first evaluation, or its agent is too large to be kept (`hpcrl logs` says so)"
