"""Doors: the Gymnasium environment, its bounds, many of it as arrays, and its functions in JAX."""

from __future__ import annotations

import itertools
import json
import warnings
from collections import deque
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from hpcrl.catalogue.environments import OWN_ENVIRONMENTS
from hpcrl.catalogue.registry import frameworks
from hpcrl.errors import UsageError
from hpcrl.formats.worker import worker_zip
from hpcrl.rl.envs.doors import AGENT, FREE, GOAL, MOVES, WALL, Doors, best_returns, shortest_paths
from hpcrl.rl.envs.doors_arrays import of_environment
from hpcrl.rl.envs.make import gymnasium_environment
from hpcrl.rl.vector.sync import SyncEnvironments
from tests.builders import built_environment
from tests.rl.test_frameworks import run_program

STAY, RIGHT, DOWN, LEFT, UP = range(5)
VARIANTS: list[dict[str, Any]] = [
    {},
    {"same_column": True, "extra_step": True},
    {"size": 8, "reward_bumping": True},
    {"size": 9, "doors": 1},
]


def begun(agent: int, goal: int, **options: Any) -> Doors:
    environment = Doors(**options)
    environment.reset(options={"agent": agent, "goal": goal})
    return environment


def played(environment: Doors, actions: list[int]) -> tuple[list[float], bool]:
    """Return the rewards of some actions, and whether the last one ended the episode."""
    found = [environment.step(action) for action in actions]
    return [reward for _, reward, *_ in found], found[-1][2]


@pytest.mark.parametrize("options", VARIANTS)
def test_gymnasium_finds_no_fault(options: dict[str, Any]) -> None:
    environment = gymnasium_environment("Doors-v0", None, options)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_env(environment.unwrapped)


def test_its_spaces_are_those_that_the_catalogue_says() -> None:
    for options in VARIANTS:
        described = OWN_ENVIRONMENTS["Doors-v0"].with_options("Doors-v0", options)
        environment = gymnasium_environment("Doors-v0", None, options)
        observation, _ = environment.reset(seed=0)
        assert observation.shape == environment.observation_space.shape == described.shape
        assert str(observation.dtype) == described.dtype
        assert environment.action_space.n == described.actions


def test_the_field_has_a_wall_with_doors_an_agent_and_a_goal() -> None:
    environment = Doors()
    grid, facts = environment.reset(options={"agent": 4, "goal": 7})
    rows = grid.reshape(15, 15)
    assert np.flatnonzero(rows[7] == FREE).tolist() == [0, 5, 10]
    assert (rows == WALL).sum() == (rows[7] == WALL).sum() == 12
    assert np.argwhere(rows == AGENT).tolist() == [[14, 4]] and np.argwhere(rows == GOAL).tolist() == [[0, 7]]
    assert facts["distance"] == pytest.approx(np.hypot(14, 3))


@pytest.mark.parametrize(
    ("size", "doors", "columns"), [(15, 3, [0, 5, 10]), (8, 3, [0, 2, 4]), (10, 4, [0, 2, 4, 6]), (9, 1, [0]), (4, 4, [0, 1, 2, 3])]
)  # fmt: skip
def test_a_wall_has_as_many_doors_as_asked_for(size: int, doors: int, columns: list[int]) -> None:
    grid, _ = Doors(size, doors).reset(seed=0)
    assert np.flatnonzero(grid.reshape(size, size)[size // 2] == FREE).tolist() == columns


def test_wall_and_border_stop_the_agent() -> None:
    environment = begun(0, 2, size=5, doors=2)  # the wall is row 2, with doors at 0 and 2
    rewards, places = [], []
    for action in (LEFT, DOWN, RIGHT, UP, UP, LEFT, UP, UP, UP, STAY):
        grid, reward, *_ = environment.step(action)
        rewards.append(reward)
        places.append(divmod(int(np.flatnonzero(grid == AGENT)[0]), 5))
    assert places == [(4, 0), (4, 0), (4, 1), (3, 1), (3, 1), (3, 0), (2, 0), (1, 0), (0, 0), (0, 0)]
    assert [rewards[index] for index in (0, 1, 4, 9)] == [0, 0, 0, 0]
    assert rewards[2] == pytest.approx(np.hypot(4, 2) - np.hypot(4, 1))


def test_the_goal_ends_the_episode_with_the_distance_of_its_start_as_return() -> None:
    environment = begun(1, 0, size=5, doors=2)
    rewards, ended = played(environment, [UP, LEFT, UP, UP])
    assert not ended
    (last,), ended = played(environment, [UP])
    assert ended and sum(rewards) + last == pytest.approx(np.hypot(4, 1), abs=1e-5)
    assert GOAL not in environment.step(STAY)[0]


def test_bumping_is_rewarded_only_where_it_was_asked_for() -> None:
    for asked in (False, True):
        environment = begun(1, 1, size=5, doors=2, reward_bumping=asked)
        rewards, _ = played(environment, [UP, UP, UP])
        assert rewards == [1, asked, asked]
        assert environment.step(STAY)[4]["distance"] == 3


@pytest.mark.parametrize(("limit", "extra"), [(None, False), (None, True), (7, False), (7, True)])
def test_an_episode_is_cut_off_at_its_limit(limit: int | None, extra: bool) -> None:
    environment = gymnasium_environment("Doors-v0", limit, {"extra_step": extra})
    environment.reset(seed=0)
    steps = [environment.step(STAY)[2:4] for _ in range((limit or 38) + extra)]
    assert [truncated for _, truncated in steps] == [False] * (len(steps) - 1) + [True]
    assert not any(terminated for terminated, _ in steps)


def test_starts_come_from_the_environment_s_own_generator() -> None:
    def starts(seed: int) -> list[tuple[int, int]]:
        environment = Doors()
        found = [environment.reset(seed=seed), *(environment.reset() for _ in range(200))]
        return [(int((grid == AGENT)[-15:].argmax()), int((grid == GOAL).argmax())) for grid, _ in found]

    np.random.seed(1)
    before = np.random.get_state()[1].tolist()  # type: ignore[index, union-attr]
    first = starts(1)
    assert np.random.get_state()[1].tolist() == before  # type: ignore[index, union-attr]
    assert first == starts(1) != starts(2)
    assert len(set(first)) > 100 and {agent for agent, _ in first} == {goal for _, goal in first} == set(range(15))


def test_agent_and_goal_in_one_column() -> None:
    environment = Doors(same_column=True)
    grids = [environment.reset(seed=seed)[0].reshape(15, 15) for seed in range(50)]
    columns = [(grid[-1].argmax(), (grid[0] == GOAL).argmax()) for grid in grids]
    assert all(agent == goal for agent, goal in columns) and len(set(columns)) > 10


def test_rendering_shows_goal_wall_and_agent() -> None:
    environment = begun(1, 3, size=4, doors=2, render_mode="rgb_array")
    image = environment.render()
    assert image is not None and image.shape == (40, 40, 3) and image.dtype == np.uint8
    assert image[5, 35].tolist() == [255, 0, 0] and image[35, 15].tolist() == [0, 0, 255]
    assert image[25, 15].tolist() == [0, 255, 0] and not image[25, 5].any()
    assert begun(1, 3, size=4, doors=2).render() is None


def searched(size: int, doors: int, agent: int, goal: int) -> list[int]:
    """Return the actions of a shortest path, by breadth-first search on the grid that the environment shows."""
    grid = Doors(size, doors).reset(options={"agent": agent, "goal": goal})[0].reshape(size, size)
    queue: deque[tuple[tuple[int, int], list[int]]] = deque([((size - 1, agent), [])])
    seen = {(size - 1, agent)}
    while queue:
        (row, column), actions = queue.popleft()
        if grid[row, column] == GOAL:
            return actions
        for action, (down, right) in enumerate(MOVES):
            place = (row + down, column + right)
            if min(place) >= 0 and max(place) < size and grid[place] != WALL and place not in seen:
                seen.add(place)
                queue.append((place, [*actions, action]))
    raise AssertionError("no path")


@pytest.mark.parametrize(("size", "doors"), [(15, 3), (8, 3), (5, 1), (3, 3), (10, 4)])
def test_shortest_paths_are_those_of_a_search(size: int, doors: int) -> None:
    known = shortest_paths(size, doors)
    best = best_returns(int(known.steps.max()), size, doors)
    for agent, goal in itertools.product(range(size), repeat=2):
        actions = searched(size, doors, agent, goal)
        rewards, ended = played(begun(agent, goal, size=size, doors=doors), actions)
        assert ended and len(actions) == known.steps[agent, goal]
        assert sum(rewards) == pytest.approx(known.returns[agent, goal], abs=1e-5)
        assert best[agent, goal] == pytest.approx(known.returns[agent, goal], abs=1e-5)


def test_the_best_mean_return_is_that_of_the_shortest_paths_from_the_starts_of_these_seeds() -> None:
    environment, seeds, returns = Doors(), [5, 6, 7, 8], []
    for seed in seeds:
        grid, _ = environment.reset(seed=seed)
        agent, goal = int(np.flatnonzero(grid == AGENT)[0]) % 15, int(np.flatnonzero(grid == GOAL)[0])
        returns.append(sum(played(environment, searched(15, 3, agent, goal))[0]))
    assert len(set(returns)) > 1
    assert environment.best_mean_return(seeds, 28) == pytest.approx(np.mean(returns), abs=1e-5)
    assert 0 < environment.best_mean_return(seeds, 3) <= 3  # a step leads at most one cell nearer


@pytest.mark.parametrize("bumping", [False, True])
@pytest.mark.parametrize("limit", [1, 3, 6])
def test_the_best_return_is_that_of_the_best_of_all_episodes(limit: int, bumping: bool) -> None:
    known = best_returns(limit, 3, 1, bumping)
    for agent, goal in itertools.product(range(3), repeat=2):
        best = 0.0
        for actions in itertools.product(range(1, 5), repeat=limit):  # to stay is as good as to end earlier
            environment, value = begun(agent, goal, size=3, doors=1, reward_bumping=bumping), 0.0
            for action in actions:
                _, reward, ended, *_ = environment.step(action)
                value += reward
                best = max(best, value)
                if ended:
                    break
        assert known[agent, goal] == pytest.approx(best, abs=1e-5)


@pytest.mark.parametrize("kept", [2**24, 0])
@pytest.mark.parametrize("options", VARIANTS)
def test_arrays_are_as_many_single_environments(
    options: dict[str, Any], kept: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hpcrl.rl.envs.doors_arrays._KEPT", kept)  # 0: observations are drawn at each step
    count, draw = 33, np.random.default_rng(0)
    make = partial(gymnasium_environment, "Doors-v0", 60, options)
    single, arrays = SyncEnvironments([make() for _ in range(count)]), of_environment(make(), count)
    for seeds in (range(count), range(100, 100 + count)):
        assert (single.reset(seeds) == arrays.reset(seeds)).all()
        ends = np.zeros(2, int)
        for _ in range(5000):
            actions = draw.choice(5, count, p=(0.1, 0.2, 0.1, 0.2, 0.4))
            wanted, found = single.step(actions), arrays.step(actions)
            for one, other in zip(wanted, found, strict=True):
                assert one.dtype == other.dtype and (one == other).all()
            ends += found.terminated.sum(), (found.ended & ~found.terminated).sum()
        assert ends.sum() > 65 * count < 100 * ends.min()  # starts are drawn 64 at a time


def test_what_arrays_gave_out_stays_as_it_was() -> None:
    arrays = of_environment(gymnasium_environment("Doors-v0", 2), 4)
    first = arrays.reset(range(4))
    kept = first.copy()
    second = arrays.step(np.full(4, UP))
    last = second.last.copy()
    third = arrays.step(np.full(4, UP))
    assert (first == kept).all() and (second.last == last).all()
    assert third.ended.all() and (third.last != third.observations).any(axis=1).all()
    assert (third.last.reshape(4, 15, 15)[:, 12] == AGENT).sum() == 4  # the last observation of the episode


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"sizes": 9}, "Doors-v0: no option 'sizes'; did you mean 'size'?"),
        ({"size": 2}, "Doors-v0: size: expected a whole number from 3 to 100, got 2 (default 15)"),
        ({"same_column": 1}, "Doors-v0: same_column: expected true or false, got 1 (default false)"),
        ({"size": 5, "doors": 6}, "Doors-v0: doors: expected at most size, which is 5, got 6"),
    ],
)
def test_options_that_there_are_not(options: dict[str, Any], reason: str) -> None:
    with pytest.raises(UsageError) as caught:
        gymnasium_environment("Doors-v0", None, options)
    assert str(caught.value) == reason


def test_options_of_other_environments() -> None:
    with pytest.raises(UsageError, match=r"^BoxSlider-v0: has no options, got size$"):
        gymnasium_environment("BoxSlider-v0", None, {"size": 64})
    with pytest.raises(UsageError, match=r"^environment CartPole-v1: options gravity: .* 'gravity'"):
        gymnasium_environment("CartPole-v1", None, {"gravity": 3})
    made = gymnasium_environment("CartPole-v1", 9, {"sutton_barto_reward": True})
    assert made.unwrapped._sutton_barto_reward and made.spec.max_episode_steps == 9


def test_steps_before_a_reset_and_columns_beyond_the_field() -> None:
    with pytest.raises(gymnasium.error.ResetNeeded):
        Doors().step(0)
    with pytest.raises(UsageError, match="expected columns from 0 to 14, got agent 15 and goal 0"):
        begun(15, 0)
    with pytest.raises(UsageError, match="got size 4 and 5 doors"):
        Doors(4, 5)


@pytest.fixture(scope="module")
def in_jax(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    worker: Path = tmp_path_factory.mktemp("worker") / "worker.zip"
    worker.write_bytes(worker_zip())
    facts: dict[str, Any] = json.loads(run_program(built_environment("jax"), worker, "tests.rl.doors_program"))
    return facts


@pytest.mark.slow
def test_transitions_in_jax_are_equal_to_the_bit(in_jax: dict[str, Any]) -> None:
    for facts, limit in zip(in_jax["variants"], (60, 61, 60, 60), strict=True):
        assert facts["limit"] == limit
        assert (facts["steps"], facts["differ"]) == (100_000, 0)
        assert min(facts["goals"], facts["cut off"]) > 100


@pytest.mark.slow
def test_starts_in_jax_have_all_columns_independently(in_jax: dict[str, Any]) -> None:
    both, one = in_jax["starts"], in_jax["starts in one column"]
    assert both["pairs"] == 15**2 and one["pairs"] == 15
    # Of 20,000 starts: within five standard deviations of the mean.
    assert abs(both["least"] - 89) < 48 > abs(both["most"] - 89)
    assert abs(one["least"] - 1333) < 177 > abs(one["most"] - 1333)
    for facts in (both, one):
        assert facts["cells"] == [[211], [1], [12], [1]] and facts["open"] == [0, 5, 10]


@pytest.mark.slow
def test_compiled_environments_have_the_options_and_the_limit(in_jax: dict[str, Any]) -> None:
    facts = in_jax["compiled"]
    assert facts["shape"] == [6, 25]
    assert facts["ended"] == [False, False, False, False, True] * 2
    assert facts["the last is kept"] and facts["the next is another"]
    assert in_jax["refused"] == "jax: CartPole-v1 in JAX has no options, got sutton_barto_reward"
    assert "Doors-v0" in frameworks()["jax"].environments
