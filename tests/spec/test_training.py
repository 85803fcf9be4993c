"""What `plan` says of ranks that cannot use their nodes, and of settings that do not suit episodes, ranks or each other."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hpcrl.errors import SpecError
from hpcrl.plan.expand import expand
from hpcrl.spec.gym import episode_limit
from hpcrl.spec.library import Library
from hpcrl.spec.study import Study
from tests.builders import command_study, dqn_study, write_yaml

LIBRARY = Library([])


def fault_of(tmp_path: Path, study: dict[str, Any], key: str) -> str:
    """Return the only fault of a study, which is at the line of a key."""
    path = write_yaml(tmp_path / "study.yaml", study)
    with pytest.raises(SpecError) as caught:
        LIBRARY.study(str(path))
    (problem,) = caught.value.problems
    lines = [number for number, line in enumerate(path.read_text().splitlines(), 1) if f"{key}:" in line]
    line, _, text = problem.removeprefix(f"{path}:").partition(": ")
    assert int(line) in lines, problem
    return text


def study(resources: dict[str, Any] | None = None, axes: dict[str, Any] | None = None, **settings: Any) -> Any:
    content = dqn_study(
        axes={"framework": ["torch"], **(axes or {})},
        resources={"memory": "1G", "time": "00:10:00", **(resources or {})},
    )
    content["workload"]["hyperparameters"] |= settings
    return content


def rainbow(axes: dict[str, Any] | None = None, **settings: Any) -> Any:
    content = study(axes=axes, **settings)
    content["workload"]["algorithm"] = "rainbow"
    return content


ALONE = "expected 1, because a training without `parallelism` is one process on one node, got {}"


@pytest.mark.parametrize(
    ("content", "key", "expected"),
    [
        (study({"nodes": 2}), "nodes", f"resources.nodes: {ALONE.format(2)}"),
        (study({"tasks": 3}), "tasks", f"resources.tasks: {ALONE.format(3)}"),
        (study({"nodes": 2, "tasks": 2}), "tasks", f"resources.tasks: {ALONE.format(2)}"),
        (
            study(axes={"size": [{"cpus": 1}, {"nodes": 2, "cpus": 2}]}),
            "nodes",
            f"axes.size.1.nodes: {ALONE.format(2)}: leave it out with `exclude: [{{nodes: 2}}]`",
        ),
        (
            study({"parallelism": "horovod", "nodes": 2, "tasks": 1}),
            "tasks",
            "resources.tasks: 2 nodes cannot share 1 rank evenly: expected a multiple of the nodes",
        ),
        (
            study({"parallelism": "horovod", "nodes": 2, "tasks": 3}, batch_size=66),
            "tasks",
            "resources.tasks: 2 nodes cannot share 3 ranks evenly: expected a multiple of the nodes",
        ),
        (
            study({"parallelism": "native", "gpus": 3}, {"nodes": [1, 2]}, batch_size=66),
            "2",
            "axes.nodes.1: 2 nodes cannot share 3 ranks evenly: expected a multiple of the nodes: leave it out with `exclude: [{nodes: 2}]`",
        ),
        (
            study({"nodes": 4}, topology="collective", actors=2),
            "nodes",
            "resources.nodes: expected at most 3, the learner and its actors, got 4",
        ),
        (
            command_study(["true"], resources={"nodes": 4, "tasks": 2}),
            "tasks",
            "resources.tasks: expected at least 4, one on each node, got 2",
        ),
    ],
)  # fmt: skip
def test_nodes_that_would_be_idle_are_refused(tmp_path: Path, content: Any, key: str, expected: str) -> None:
    if key == "2":  # a value of a list has no key of its own
        path = write_yaml(tmp_path / "study.yaml", content)
        with pytest.raises(SpecError) as caught:
            LIBRARY.study(str(path))
        assert [problem.partition(": ")[2] for problem in caught.value.problems] == [expected]
        return
    assert fault_of(tmp_path, content, key) == expected


@pytest.mark.parametrize(
    ("resources", "settings", "ranks"),
    [
        ({"nodes": 4, "parallelism": "horovod"}, {}, 4),
        ({"nodes": 2, "parallelism": "native"}, {}, 2),
        ({"nodes": 2, "gpus": 4, "parallelism": "native"}, {}, 4),
        ({"nodes": 2}, {"topology": "collective", "actors": 2}, 3),  # the learner's node has one rank more
        ({"tasks": 1}, {}, 1),
    ],
)
def test_every_node_has_a_rank(resources: dict[str, Any], settings: dict[str, Any], ranks: int) -> None:
    (point,) = expand(Study.model_validate(study(resources, **settings)))
    assert point.resources.tasks == ranks


def test_a_wrong_resource_is_the_only_fault(tmp_path: Path) -> None:
    content = study({"parallelism": "horovod"}, {"gpus": ["two"], "nodes": [1, 2]})
    path = write_yaml(tmp_path / "study.yaml", content)
    with pytest.raises(SpecError) as caught:
        LIBRARY.study(str(path))
    assert [problem.partition(": ")[2] for problem in caught.value.problems] == [
        "axes.gpus.0: expected a whole number, got 'two'"
    ]


@pytest.mark.parametrize(
    ("algorithm", "name", "expected"),
    [
        ("ppo", "clip_range", "a number greater than 0, got 0 (default 0.2)"),
        ("ppo", "learning_rate", "a number greater than 0, got 0 (default 0.001)"),
        ("rainbow", "noise_scale", "a number greater than 0, got 0 (default 0.1)"),
        ("dqn", "target_share", "a number greater than 0 and at most 1, got 0 (default 1.0)"),
        ("dqn", "learning_rate", "a number greater than 0, got 0 (default 0.0023)"),
    ],
)
def test_settings_with_which_nothing_is_learned_are_refused(
    tmp_path: Path, algorithm: str, name: str, expected: str
) -> None:
    content = study()
    content["workload"]["algorithm"] = algorithm
    content["workload"]["hyperparameters"] |= {name: 0, "total_steps": 512}
    assert fault_of(tmp_path, content, name) == f"workload.hyperparameters.{name}: expected {expected}"


def test_a_minibatch_of_one_transition_has_no_advantage_to_learn_from(tmp_path: Path) -> None:
    content = study()
    content["workload"]["algorithm"] = "ppo"
    content["workload"]["hyperparameters"] |= {"minibatch_size": 1, "total_steps": 512}
    assert fault_of(tmp_path, content, "minibatch_size") == (
        "workload.hyperparameters.minibatch_size: 1: expected at least 2: normalize_advantages makes the advantage of a single transition 0"
    )
    content["workload"]["hyperparameters"] |= {"normalize_advantages": False}
    Study.model_validate(content)


def test_a_learning_rate_may_fall_to_0() -> None:
    Study.model_validate(study(final_learning_rate=0.0))


@pytest.mark.parametrize(
    ("content", "key", "expected"),
    [
        (rainbow(n_step=501), "n_step", "workload.hyperparameters.n_step: 501: expected at most 500, the steps of the longest episode"),
        (
            rainbow(axes={"limit": [{"n_step": 5}, {"n_step": 21, "max_episode_steps": 20}]}),
            "n_step",
            "axes.limit.1.n_step: 21: expected at most 20, the steps of the longest episode",
        ),
        (
            rainbow(n_step=4, learning_starts=2),
            "learning_starts",
            "workload.hyperparameters.learning_starts: 2: expected at least 4, the steps of the first whole window (n_step 4): before them the "
            "replay may be empty",
        ),
        (
            rainbow(axes={"ranks": [{"parallelism": "native", "tasks": 4}]}, n_step=4, learning_starts=12, train_interval=4),
            "learning_starts",
            "workload.hyperparameters.learning_starts: 12: expected at least 16, the steps of the first whole window (n_step 4 of each of 4 "
            "explorers): before them the replay may be empty",
        ),
        (
            rainbow(n_step=2, learning_starts=4, topology="collective", actors=4, train_interval=4),
            "learning_starts",
            "workload.hyperparameters.learning_starts: 4: expected at least 8, the steps of the first whole window (n_step 2 of each of 4 "
            "explorers): before them the replay may be empty",
        ),
        (
            rainbow(axes={"ranks": [{"parallelism": "native", "tasks": 2}]}, n_step=60, buffer_size=100),
            "n_step",
            "workload.hyperparameters.n_step: 60: expected at most a rank's share of buffer_size 100, which is 50",
        ),
    ],
)  # fmt: skip
def test_windows_of_several_steps_that_cannot_be_are_refused(
    tmp_path: Path, content: Any, key: str, expected: str
) -> None:
    assert fault_of(tmp_path, content, key) == expected


def test_windows_as_long_as_an_episode_are_possible() -> None:
    Study.model_validate(rainbow(n_step=500))
    Study.model_validate(rainbow(axes={"max_episode_steps": [600, 700]}, n_step=600))
    Study.model_validate(rainbow(n_step=4, learning_starts=4))


def test_a_search_draws_no_window_longer_than_an_episode(tmp_path: Path) -> None:
    content = rainbow()
    content["search"] = {"trials": 2, "space": {"n_step": {"low": 1, "high": 600}}}
    expected = "search.space.n_step: 600: expected at most 500, the steps of the longest episode (at n_step: 600): narrow the space"
    assert fault_of(tmp_path, content, "n_step") == expected


@pytest.mark.parametrize(
    ("name", "options", "given", "limit"),
    [
        ("CartPole-v0", {}, None, 200),
        ("CartPole", {}, None, 500),  # Gymnasium takes the newest version
        ("CartPole-v1", {}, 30, 30),
        ("Doors-v0", {}, None, 38),
        ("Doors-v0", {"extra_step": True}, 10, 11),
        ("Doors-v0", {"size": 1}, None, None),
        ("mine.package:Maze-v0", {}, None, None),
        ("mine.package:Maze-v0", {}, 7, 7),
    ],
)
def test_the_longest_episode(name: str, options: dict[str, Any], given: int | None, limit: int | None) -> None:
    assert episode_limit(name, options, given) == limit


@pytest.mark.parametrize("way", ["processes", "pipes", "arrays"])
def test_a_fused_mode_has_no_other_way_of_stepping(tmp_path: Path, way: str) -> None:
    content = study()
    content["workload"] = {"algorithm": "ppo", "environment": "Doors-v0"}
    content["axes"] = {"framework": ["jax"], "execution": ["lazy", "fused"], "stepping": ["sync", way]}
    path = write_yaml(tmp_path / "study.yaml", content)
    with pytest.raises(SpecError) as caught:
        LIBRARY.study(str(path))
    rule = f"leave it out with `exclude: [{{execution: fused, stepping: {way}}}]`"
    expected = f"axes.stepping.1: fused has the environment in the learner's program: {way} does not apply: {rule}"
    assert [problem.partition(": ")[2] for problem in caught.value.problems] == [expected]
    content["exclude"] = [{"execution": "fused", "stepping": way}]
    LIBRARY.study(str(write_yaml(path, content)))


def test_a_refusal_names_the_default_of_an_algorithm_that_has_the_axis(tmp_path: Path) -> None:
    content = study(axes={"algorithm": ["dqn", "ppo"], "learning_rate": [0, 1.0e-3]})
    del content["workload"]["algorithm"]
    content["workload"]["hyperparameters"] = {}
    wrong = "expected a number greater than 0, got 0 (default {})"
    assert fault_of(tmp_path, content, "learning_rate").endswith(f"DQN: {wrong.format(0.0023)}")
    content["axes"] = {"framework": ["torch"], "algorithm": [{"algorithm": "ppo", "learning_rate": 0}, "dqn"]}
    assert fault_of(tmp_path, content, "learning_rate").endswith(f": {wrong.format(0.001)}")
