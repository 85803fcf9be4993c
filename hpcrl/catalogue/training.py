"""Hyperparameters that the algorithms share; an algorithm's Settings may give them other defaults."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hpcrl.catalogue.fields import choice, flag, integer, integers, number

TOPOLOGIES = ("sequential", "pairwise", "collective", "asynchronous")
# Ways to step several environments, each a file of hpcrl.rl.vector; those with worker processes; and the framework in which `compiled` ones
# are written, whatever framework learns.
STEPPING = ("sync", "processes", "pipes", "arrays", "compiled")
IN_PROCESSES = ("processes", "pipes")
COMPILED_IN = "jax"
# Worker processes: as many as there are cores, or one for each environment.
WORKERS = ("cores", "environments")


@dataclass(frozen=True)
class OptimizerSettings:
    """How a learner applies a gradient. A `max_gradient_norm` of 0 turns clipping off. `sgd` has no momentum.

    `defaults` is ``aligned`` (hpcrl's initial weights and one formula for every framework's optimiser) or ``framework``
    (the framework's own initialiser and optimiser class, unchanged).
    """

    max_gradient_norm: float = number(10.0, 0)
    optimizer: str = choice("adam", "rmsprop", "sgd")
    optimizer_epsilon: float = number(1e-8, 0)
    rmsprop_decay: float = number(0.99, 0, 1)
    defaults: str = choice("aligned", "framework")


@dataclass(frozen=True)
class TrainingSettings(OptimizerSettings):
    """The length of a training, its network and learning rate, and its evaluations.

    `acting` is ``framework`` (the comparison) or ``numpy`` (on the learner's weights, for speed). An evaluation that
    reaches the goal counts when `confirmation_episodes` from other starts reach it too; with `stop_at_goal` that ends
    the training.
    """

    total_steps: int = integer(50_000)
    hidden: tuple[int, ...] = integers((256, 256))
    learning_rate: float = number(2.3e-3, above=0)
    final_learning_rate: float | None = number(0.0, 0)
    acting: str = choice("framework", "numpy")
    evaluation_interval: int = integer(2_500)
    evaluation_episodes: int = integer(10)
    confirmation_episodes: int = integer(30)
    stop_at_goal: bool = flag(False)


@dataclass(frozen=True)
class OnPolicySettings(TrainingSettings):
    """Rollouts: `rollout_steps` steps of each of the `environments`; `stepping` says how those are stepped, and `workers` in
    how many processes, if it is in processes.

    `normalize_observations` and `normalize_rewards` bring these to a common scale by their running moments. Steps and environments
    are totals over all ranks.
    """

    gamma: float = number(0.99, 0, 1)
    gae_lambda: float = number(0.95, 0, 1)
    normalize_advantages: bool = flag(True)
    normalize_observations: bool = flag(False)
    normalize_rewards: bool = flag(False)
    environments: int = integer(1, 1, 100_000)
    stepping: str = choice(*STEPPING)
    workers: str = choice(*WORKERS)
    rollout_steps: int = integer(2_048)

    @property
    def returns_lambda(self) -> float:
        """Return the lambda of the returns that values learn: 1 sums the rewards of the whole episode."""
        return self.gae_lambda


@dataclass(frozen=True)
class TopologySettings(TrainingSettings):
    """Who explores: the learner itself (``sequential``), or `actors` in processes of their own.

    In the topologies ``pairwise`` (one actor, point to point) and ``collective`` (gather and broadcast) all take each interval
    together; with `overlap` the actors explore the next one while the learner learns. ``asynchronous`` actors wait when they are two
    blocks ahead of the learner's answers, and no block of transitions is older than `max_staleness` intervals of updates. `step_latency` is in seconds: every training step
    takes that much longer, as with a simulator behind a socket.
    """

    topology: str = choice(*TOPOLOGIES)
    actors: int = integer(1, 1, 10_000)
    overlap: bool = flag(True)
    max_staleness: int = integer(4)
    step_latency: float = number(0.0, 0, 60)


@dataclass(frozen=True)
class CountingSettings(TopologySettings):
    """What off-policy algorithms count.

    `train_interval` counts environment steps or, with `train_unit` episodes, ended episodes; `total_episodes` ends the training
    where `total_steps` does not (0: never). The target copy moves by `target_share` of the way every `target_interval` steps or,
    with `target_unit` updates, updates. Each update takes `epochs` gradient steps on its batch. Epsilon falls by the environment
    steps of all; an `epsilon_decay` above 0 instead multiplies it at each end of an explorer's own episodes.
    """

    train_unit: str = choice("steps", "episodes")
    total_episodes: int = integer(0, 0)
    target_unit: str = choice("steps", "updates")
    target_share: float = number(1.0, maximum=1, above=0)
    epochs: int = integer(1)
    epsilon_decay: float = number(0.0, 0, 1)


@dataclass(frozen=True)
class OffPolicySettings(CountingSettings):
    """The replay, the target copy and epsilon-greedy exploration. Steps, episodes and batch are totals over all ranks and actors."""

    gamma: float = number(0.99, 0, 1)
    double: bool = flag(False)
    dueling: bool = flag(False)
    batch_size: int = integer(64)
    buffer_size: int = integer(100_000)
    learning_starts: int = integer(1_000)
    target_interval: int = integer(10)
    train_interval: int = integer(256)
    updates: int = integer(128)
    initial_epsilon: float = number(1.0, 0, 1)
    final_epsilon: float = number(0.04, 0, 1)
    exploration_fraction: float = number(0.16, 0, 1)


@dataclass(frozen=True)
class ManySettings(OffPolicySettings):
    """Exploration in `environments` that step together, in the way `stepping`, and if that is in processes, in as many as `workers`
    says. They are a total over all ranks.
    """

    environments: int = integer(1, 1, 100_000)
    stepping: str = choice(*STEPPING)
    workers: str = choice(*WORKERS)


# Off-policy settings that a loop without Python between its steps does not have, and their values there.
NOT_FUSED: dict[str, Any] = {
    "environments": 1,
    "topology": "sequential",
    "step_latency": 0,
    "train_unit": "steps",
    "total_episodes": 0,
    "target_unit": "steps",
    "target_share": 1,
    "epochs": 1,
    "epsilon_decay": 0,
}


def off_policy_fault(settings: OffPolicySettings, ranks: int) -> tuple[str, str] | None:
    """Return the setting with which `ranks` ranks cannot learn from a replay, and why; None if they can."""
    if wrong := _topology_fault(settings, ranks):
        return wrong
    if settings.batch_size > settings.buffer_size:
        return "batch_size", f"{settings.batch_size}: expected at most buffer_size, which is {settings.buffer_size}"
    if wrong := _unit_fault(settings, ranks):
        return wrong
    if settings.batch_size % ranks == 0 and min(settings.train_interval, settings.target_interval) >= ranks:
        return None
    return "batch_size", (
        f"{ranks} ranks cannot share batch_size {settings.batch_size}, train_interval {settings.train_interval} and "
        f"target_interval {settings.target_interval}: expected a multiple of {ranks} for the first, at least {ranks} for the others"
    )


def _unit_fault(settings: OffPolicySettings, ranks: int) -> tuple[str, str] | None:
    episodes, topology = settings.train_unit == "episodes", settings.topology
    if episodes and (ranks > 1 or topology == "asynchronous"):
        who = "asynchronous actors count" if topology == "asynchronous" else f"{ranks} ranks that learn count"
        return "train_unit", f"episodes: {who} steps: leave it out, or choose another topology without parallelism"
    if settings.total_episodes and not episodes:
        return "total_episodes", f"{settings.total_episodes}: set `train_unit` to episodes too, or leave it out"
    if settings.target_unit == "updates" and settings.updates % settings.target_interval:
        return "target_interval", (
            f"{settings.target_interval} updates: expected a divisor of `updates`, which is {settings.updates}"
        )
    return None


def is_over(settings: Any, step: int, episodes: int) -> bool:
    """Tell whether a training has taken its last environment step or ended its last episode."""
    total: int = getattr(settings, "total_episodes", 0)
    return bool(step >= settings.total_steps or 0 < total <= episodes)


def steps_compiled(stepping: object, execution: object) -> bool:
    """Tell whether a cell steps environments that are compiled beside its learner; in a fused mode they are inside of it."""
    return stepping == "compiled" and execution != "fused"


def frameworks_of(values: Mapping[str, Any]) -> list[str]:
    """Return the frameworks that a cell with these values uses: its learner's, and that of the environments if they are compiled beside it."""
    beside = [COMPILED_IN] if steps_compiled(values.get("stepping"), values.get("execution")) else []
    return list(dict.fromkeys([str(values.get("framework")), *beside]))


def workers_fault(settings: Any) -> tuple[str, str] | None:
    """Return the setting with which there are no worker processes, and why; None if there are some, or none are asked for."""
    if settings.workers == WORKERS[0] or settings.stepping in IN_PROCESSES:
        return None
    return "workers", f"{settings.workers}: needs stepping {' or '.join(IN_PROCESSES)}, got {settings.stepping}"


def has_many(settings: Any) -> bool:
    """Tell whether an off-policy learner explores in environments that step together."""
    return getattr(settings, "environments", 1) > 1 or getattr(settings, "stepping", "sync") != "sync"


def many_fault(settings: ManySettings, ranks: int) -> tuple[str, str] | None:
    """Return the setting with which an off-policy learner cannot explore in environments that step together, and why."""
    if not has_many(settings):
        return workers_fault(settings)
    together = f"environments: {settings.environments}, stepping: {settings.stepping}"
    alone = {"topology": TOPOLOGIES[0], "train_unit": "steps", "epsilon_decay": 0}
    for name, value in alone.items():
        if getattr(settings, name) != value:
            return name, f"{getattr(settings, name)}: does not apply to environments that step together ({together})"
    if settings.step_latency and settings.stepping in ("arrays", "compiled"):
        return (
            "step_latency",
            f"{settings.step_latency}: needs stepping sync, processes or pipes, got {settings.stepping}",
        )
    if settings.environments % ranks:
        return "environments", f"{ranks} ranks cannot share {settings.environments}: expected a multiple of {ranks}"
    if settings.train_interval % settings.environments:
        return "train_interval", (
            f"{settings.train_interval}: expected a multiple of environments, which is {settings.environments}"
        )
    return workers_fault(settings)


def has_actors(settings: object) -> bool:
    """Tell whether actors explore in processes of their own."""
    return getattr(settings, "topology", TOPOLOGIES[0]) != TOPOLOGIES[0]


def ranks_with_actors(values: Mapping[str, Any]) -> int | None:
    """Return how many ranks the learner and its actors are, for values as a study gives them; None without actors."""
    topology, actors = values.get("topology"), values.get("actors", 1)
    return 1 + actors if topology in TOPOLOGIES[1:] and isinstance(actors, int) else None


def learning_gpus(gpus: int, tasks: int, parallelism: str) -> int:
    """Return on how many of its GPUs a cell learns: each rank that averages gradients has one, and a single process uses one."""
    return min(gpus, 1 if parallelism == "none" else tasks)


def _topology_fault(settings: OffPolicySettings, ranks: int) -> tuple[str, str] | None:
    topology, actors = settings.topology, settings.actors
    if actors > 1 and topology in TOPOLOGIES[:2]:
        there = "explores in the learner's process" if topology == TOPOLOGIES[0] else "has one actor"
        return (
            "actors",
            f"{actors}: {topology} {there}: set `topology` to collective or asynchronous, or leave `actors` out",
        )
    if not has_actors(settings):
        return None
    if ranks > 1:
        return "topology", f"{topology}: has one learner, but `parallelism` asks for {ranks}: set it to none"
    if settings.train_interval % actors:
        return (
            "actors",
            f"{actors} actors cannot share train_interval {settings.train_interval}: expected a multiple of {actors}",
        )
    return None
