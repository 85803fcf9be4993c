"""Make the ranks of a topology: the learner's loop on rank 0, an actor on every other rank."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import Any

import numpy as np

from hpcrl.errors import HpcrlError, UsageError
from hpcrl.rl.distributed.group import Group
from hpcrl.rl.distributed.horovod import check_size
from hpcrl.rl.interfaces import Algorithm, Learner, Weights
from hpcrl.rl.loops.acting import FrameworkActor, NumpyActor
from hpcrl.rl.loops.updating import warm_up
from hpcrl.rl.runs import Run
from hpcrl.rl.topologies.acting import ActorRank
from hpcrl.rl.topologies.learning import AsynchronousLoop, LearnerLoop, RoundLoop
from hpcrl.rl.topologies.ports import (
    GRACE_SECONDS,
    DirectActor,
    PairLearner,
    Patience,
    PostedLearner,
    StarActor,
    StarLearner,
)
from hpcrl.rl.topologies.wire import Block


def join(group: Group) -> Any:
    """Return the communicator of the cell's ranks.

    Raises:
        UsageError: mpi4py or the MPI library is not installed here.
        HpcrlError: MPI sees other ranks than hpcrl started.
    """
    try:
        from mpi4py import MPI
    except ModuleNotFoundError:
        raise UsageError(
            "mpi4py: is not installed in this environment, and actors send their transitions over MPI: run hpcrl env create, or install mpi4py in an "
            "environment of your own"
        ) from None
    except (ImportError, RuntimeError) as error:
        raise UsageError(
            f"mpi4py: finds no MPI library here ({' '.join(str(error).split())}): install Open MPI, or load the site's module "
            "in `environments.setup` of the cluster's profile"
        ) from None
    check_size(f"mpi4py over {library(MPI)}", MPI.COMM_WORLD.size, group)
    return MPI.COMM_WORLD


def library(mpi: Any) -> str:
    """Return name and version of the MPI library that mpi4py found."""
    text: str = mpi.Get_library_version().split(",")[0].split(" package")[0]
    return " ".join(text.split()).rstrip("\0")


def make_loop(
    algorithm: Algorithm, implementation: Any, make_environment: Callable[[], Any], learner: Learner, run: Run
) -> LearnerLoop:
    """Return the learner's loop, with a learner that has compiled all of its programs. The actors have the environments.

    Raises:
        RankGone: a signal came, and an actor had not come this far.
    """
    settings, world, size = algorithm.settings, run.world, _size(learner.weights(algorithm.acts_with))
    # Not the phase `wait`, which is a part of the training: the actors are still being made.
    check_equal(Patience(run.stop, GRACE_SECONDS), world, algorithm, size)
    warm_up(algorithm, implementation, learner, run)
    wait = Patience(run.stop, GRACE_SECONDS, run.clock)
    given = (wait, algorithm, implementation, learner, run, size, settings.actors)
    blocks = [Block(algorithm.space, _capacity(algorithm)) for _ in range(settings.actors)]
    if settings.topology == "pairwise":
        return RoundLoop(PairLearner(wait, world, blocks[0]), *given)
    if settings.topology == "collective":
        return RoundLoop(StarLearner(wait, world, size, blocks, algorithm.space), *given)
    return AsynchronousLoop(PostedLearner(wait, world, size, blocks), *given)


def make_actor_rank(
    algorithm: Algorithm, implementation: Any, environment: Any, weights: Weights, learner: Learner | None, run: Run
) -> ActorRank:
    """Return the actor of this rank.

    Args:
        weights: names and shapes of the weights that actors act with.
        learner: what acts, if it is the framework.

    Raises:
        HpcrlError: the learner has other settings, another space or another network.
    """
    wait = Patience(clock=run.clock)
    settings, world, size = algorithm.settings, run.world, _size(weights)
    check_equal(Patience(), world, algorithm, size)
    actor = FrameworkActor(learner, algorithm) if learner else NumpyActor(algorithm)
    first, second = (Block(algorithm.space, _capacity(algorithm)) for _ in range(2))
    ports = (
        StarActor(wait, world, size, first)
        if settings.topology == "collective"
        else DirectActor(wait, world, size, (first, second))
    )
    number = world.rank - 1
    return ActorRank(ports, algorithm, implementation, environment, actor, weights, run, number, settings.actors)


def check_equal(wait: Patience, world: Any, algorithm: Algorithm, size: int) -> None:
    """Make sure that all ranks have the same network, the same space and the same settings.

    Raises:
        HpcrlError: this rank differs from the learner.
        RankGone: a signal came while another rank was awaited.
    """
    space = algorithm.space
    mine = np.array([size, space.inputs, space.actions, zlib.crc32(repr(algorithm.settings).encode())], np.int64)
    all_of_them = np.empty((world.size, len(mine)), np.int64)
    wait(world.Iallgather(mine, all_of_them).Test)
    learners = all_of_them[0]
    for what, own, other in zip(("weights", "inputs", "actions"), mine, learners, strict=False):
        if own != other:
            raise HpcrlError(
                f"rank {world.rank} of {world.size}: its network has {own} {what}, the learner's {other}: all ranks must run the "
                "same cell in the same environment"
            )
    if mine[3] != learners[3]:
        raise HpcrlError(
            f"rank {world.rank} of {world.size}: its settings are not the learner's: all ranks must run the same cell"
        )


def _capacity(algorithm: Algorithm) -> int:
    """Return the largest number of transitions that an actor sends at once.

    Raises:
        UsageError: intervals are counted in episodes, which may be of any length.
    """
    settings = algorithm.settings
    share = int(settings.train_interval // settings.actors)
    if settings.train_unit == "steps":
        return share
    if algorithm.space.limit is None:
        raise UsageError(
            "train_unit: episodes: the environment has no limit of steps, so that no message can be long enough: set "
            "`max_episode_steps` of the workload"
        )
    return share * algorithm.space.limit


def _size(weights: Weights) -> int:
    return sum(array.size for array in weights.values())
