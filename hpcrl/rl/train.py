"""A training from its first step, or from a checkpoint, to its end: evaluations, goal, checkpoint, result."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from hpcrl.catalogue.training import is_over
from hpcrl.errors import UsageError
from hpcrl.rl import checkpoint
from hpcrl.rl.distributed.agreement import any_rank
from hpcrl.rl.distributed.collective import Collective
from hpcrl.rl.evaluation import evaluate, start_seeds
from hpcrl.rl.interfaces import Weights
from hpcrl.rl.make import Training
from hpcrl.rl.normalization import Moments
from hpcrl.rl.runs import Policy, Result
from hpcrl.rl.topologies.learning import LearnerLoop

# Random streams of a seed, in addition to those of the loop.
_EVALUATION, _CONFIRMATION = 3, 4


@dataclass
class _Scores:
    """What the evaluations found so far: the best mean return, when the goal was reached, and the policies to keep.

    `step` is that of the last evaluation. After a checkpoint one may still be due at the loop's own step: actors had taken the last step
    before it when a signal came.
    """

    step: int = 0
    best: float | None = None
    goal_step: int | None = None
    policies: dict[str, Policy] = field(default_factory=dict)


def train(
    training: Training,
    goal: float | None = None,
    stop: Callable[[], bool] = lambda: False,
    checkpoint_file: Path | None = None,
) -> Result:
    """Train until the last step, the goal (`stop_at_goal`), or `stop` ends it. Every evaluation has the same starts.

    Rank 0 evaluates. The checkpoint is written when `stop` ends the training. A learner with actors also writes it after every evaluation, because an
    actor that dies may end the learner, too.

    Raises:
        UsageError: `stop_at_goal` without a goal.
    """
    settings, loop, run = training.algorithm.settings, training.loop, training.run
    if settings.stop_at_goal and goal is None:
        raise UsageError(f"{training.algorithm.name}: stop_at_goal: the study has no `goal`")
    scores = _resume(training, checkpoint_file)
    try:
        outcome, final = _until_the_end(training, scores, goal, stop, checkpoint_file)
    except Exception:
        if isinstance(loop, LearnerLoop):
            loop.abandon()
        raise
    finally:
        loop.close()
    for text in training.remarks():
        run.reporter.event(text)
    if outcome == "preempted" and checkpoint_file is not None:
        _save(training, scores, checkpoint_file)
    if outcome == "completed":
        run.reporter.progress(loop.step, settings.total_steps)
    return Result(outcome, loop.step, loop.episodes, final, scores.best, scores.goal_step, scores.policies)


def _until_the_end(
    training: Training, scores: _Scores, goal: float | None, stop: Callable[[], bool], checkpoint_file: Path | None
) -> tuple[str, float | None]:
    """Return the outcome and, if it is completed, the last score."""
    settings, loop = training.algorithm.settings, training.loop
    final: float | None = None
    training.run.clock.switch("other")
    while not (is_over(settings, loop.step, loop.episodes) and scores.step == loop.step):
        until = min(
            settings.total_steps, (scores.step // settings.evaluation_interval + 1) * settings.evaluation_interval
        )
        if not _advance(training, until, stop):
            return "preempted", None
        weights = {group: training.learner.weights(group) for group in training.algorithm.groups}
        if not all(np.isfinite(array).all() for group in weights.values() for array in group.values()):
            return "diverged", None
        final, ends, pruned = _score(training, scores, goal, weights.get(training.algorithm.acts_with))
        scores.step = loop.step
        if ends:
            break
        if is_over(settings, loop.step, loop.episodes):
            continue
        if pruned:
            return "pruned", None
        if training.run.world is not None and checkpoint_file is not None:
            _save_between(training, scores, checkpoint_file)
    return "completed", final


def _advance(training: Training, until: int, stop: Callable[[], bool]) -> bool:
    """Train until an environment step, and report the progress at the marks before it; return False if `stop` ended it."""
    loop, run = training.loop, training.run
    for mark in [mark for mark in run.marks if loop.step < mark < until]:
        if not loop.advance(mark, stop):
            return False
        run.reporter.progress(loop.step, training.algorithm.settings.total_steps)
    return loop.advance(until, stop)


def _score(
    training: Training, scores: _Scores, goal: float | None, weights: Weights | None
) -> tuple[float | None, bool, bool]:
    """Return rank 0's mean return, on every rank whether the training ends here, and whether a search prunes it.

    What a search takes for this is a part of the evaluation, not of the training time.

    Args:
        weights: a copy of those that act, which nothing changes; None if the policy has none.
    """
    settings, loop, run = training.algorithm.settings, training.loop, training.run
    run.clock.switch("evaluate")
    mean, pruned = None, False
    if run.rank == 0:
        mean = _mean_return(training, _EVALUATION, settings.evaluation_episodes)
        kept = ["last"]
        if scores.best is None or mean > scores.best:
            scores.best, kept = mean, ["best", "last"]
        if weights:
            policy = Policy(loop.step, mean, weights, loop.moments())
            scores.policies |= dict.fromkeys(kept, policy)
        run.reporter.evaluation(loop.step, mean)
        if goal is not None and scores.goal_step is None and mean >= goal:
            again = _mean_return(training, _CONFIRMATION, settings.confirmation_episodes)
            run.reporter.confirmation(loop.step, again, again >= goal)
            scores.goal_step = loop.step if again >= goal else None
        pruned = run.prune(loop.step, mean)
    ends = settings.stop_at_goal and scores.goal_step is not None
    if run.collective:  # the other ranks wait here, not at the first gradient afterwards
        ends = any_rank(run.collective, ends)
    run.clock.switch("other")
    return mean, ends, pruned


def _mean_return(training: Training, stream: int, episodes: int) -> float:
    starts = start_seeds(training.run.seed, stream, episodes)
    dtype = training.algorithm.space.dtype
    return float(evaluate(training.loop.act, training.evaluation_environments, starts, dtype).mean())


def best_possible(training: Training) -> float | None:
    """Return the largest mean return of the starts that all evaluations have; None if the environment does not know it.

    An environment knows it by a method ``best_mean_return(seeds, limit)``; `limit` is the largest number of steps.
    """
    environment = getattr(training.evaluation_environments[0], "unwrapped", None)
    known = getattr(environment, "best_mean_return", None)
    limit = training.algorithm.space.limit
    if known is None or limit is None:
        return None
    return float(
        known(start_seeds(training.run.seed, _EVALUATION, training.algorithm.settings.evaluation_episodes), limit)
    )


def _save_between(training: Training, scores: _Scores, path: Path) -> None:
    """Write a checkpoint after an evaluation. If that fails, the last one is kept and the training goes on.

    Its time is a phase of its own and no part of the training's: a sequential run, with which these are compared, writes none.
    """
    with training.run.clock.aside("checkpoint"):
        try:
            _save(training, scores, path)
        except OSError as error:
            training.run.reporter.event(f"no checkpoint was written at step {training.loop.step}: {error}")


def _save(training: Training, scores: _Scores, path: Path) -> None:
    loop = training.loop
    arrays, loop_facts = loop.state()
    arrays = checkpoint.nested("learner", training.learner.state()) | checkpoint.nested("loop", arrays)
    facts: dict[str, Any] = {"step": loop.step, "episodes": loop.episodes}
    facts |= {"evaluated": scores.step, "best": scores.best, "goal_step": scores.goal_step}
    if best := scores.policies.get("best"):
        arrays |= checkpoint.nested("best", _arrays_of(best))
        facts["best_step"] = best.step
    checkpoint.save(path, arrays, facts | {"spent": training.run.reporter.spent(), "loop": loop_facts})


def _resume(training: Training, path: Path | None) -> _Scores:
    """Restore the checkpoint, if there is one that every rank can continue from."""
    saved = _common_checkpoint(path, training.run.collective)
    if saved is None:
        return _Scores()
    (arrays, facts), loop = saved, training.loop
    training.learner.load_state(checkpoint.part("learner", arrays))
    loop.load_state(checkpoint.part("loop", arrays), facts["loop"])
    loop.step, loop.episodes = facts["step"], facts["episodes"]
    training.run.reporter.resumed(loop.step, facts.get("spent", {}))
    evaluated = facts.get("evaluated", loop.step)  # older checkpoints have none
    return _Scores(evaluated, facts["best"], facts["goal_step"], _best_of(arrays, facts))


def _arrays_of(policy: Policy) -> checkpoint.NamedArrays:
    moments = {} if policy.moments is None else policy.moments._asdict()
    parts = {name: np.asarray(value) for name, value in moments.items()}
    return checkpoint.nested("weights", dict(policy.weights)) | checkpoint.nested("moments", parts)


def _best_of(arrays: checkpoint.NamedArrays, facts: dict[str, Any]) -> dict[str, Policy]:
    """Return the best policy before a checkpoint, if it has one."""
    stored = checkpoint.part("best", arrays)
    if not stored:
        return {}
    moments = checkpoint.part("moments", stored)
    weights = checkpoint.part("weights", stored)
    return {"best": Policy(facts["best_step"], facts["best"], weights, Moments(**moments) if moments else None)}


def _common_checkpoint(
    path: Path | None, collective: Collective | None
) -> tuple[checkpoint.NamedArrays, dict[str, Any]] | None:
    """Return the checkpoint; None if there is none, or if not all ranks have one of the same step."""
    saved = checkpoint.load(path) if path is not None else None
    if collective is None:
        return saved
    mine = np.array([saved[1]["step"] if saved else 0], np.float32)
    differs = abs(collective.average_array(mine) - mine)[0] > 0.1
    return None if any_rank(collective, saved is None or bool(differs)) else saved
