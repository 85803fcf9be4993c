"""What `plan` says of a learner and its actors, and of ranks that share cores."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hpcrl.errors import SpecError
from hpcrl.plan.expand import expand
from hpcrl.spec.library import Library
from hpcrl.spec.study import Study
from tests.builders import cells_of, dqn_study, planned, write_yaml
from tests.conftest import Shown


def study(resources: dict[str, Any] | None = None, **settings: Any) -> dict[str, Any]:
    content = dqn_study(
        axes={"framework": ["numpy"]}, resources={"memory": "1G", "time": "00:10:00", **(resources or {})}
    )
    content["workload"]["hyperparameters"] |= settings
    return content


@pytest.mark.parametrize(
    ("resources", "settings", "fault"),
    [
        ({}, {"topology": "star"}, "no topology 'star'; there are: asynchronous, collective, pairwise, sequential"),
        ({}, {"topology": "collective", "actors": 0}, "actors: expected a whole number from 1 to 10,000, got 0"),
        ({}, {"topology": "pairwise", "actors": 2}, "pairwise has one actor: set `topology` to collective or asynchronous"),
        ({}, {"actors": 2}, "sequential explores in the learner's process: set `topology` to collective or asynchronous"),
        ({}, {"topology": "collective", "actors": 3}, "3 actors cannot share train_interval 256: expected a multiple of 3"),
        ({"tasks": 2}, {"topology": "collective", "actors": 4}, "resources.tasks: expected 5, the learner and its 4 actors, got 2"),
        ({"gpus": 2}, {"topology": "pairwise"}, "resources.gpus: expected at most 1, which is the learner's (actors use none), got 2"),
        ({"gpus": 1, "nodes": 3}, {"topology": "collective", "actors": 2}, "a job has as many on each of its 3 nodes: set `nodes` to 1 or `gpus` to 0"),
        ({"parallelism": "horovod", "tasks": 2}, {"topology": "pairwise"}, "has one learner, but `parallelism` asks for 2"),
        ({}, {"topology": "asynchronous", "max_staleness": 0}, "max_staleness: expected a whole number from 1 to 1,000,000,000,000, got 0"),
        ({"overcommit": 1}, {}, "overcommit"),
        ({}, {"topology": "asynchronous", "train_unit": "episodes"}, "episodes: asynchronous actors count steps"),
        ({"parallelism": "horovod", "tasks": 2}, {"train_unit": "episodes"}, "episodes: 2 ranks that learn count steps"),
        ({}, {"total_episodes": 10}, "total_episodes: 10: set `train_unit` to episodes too"),
        ({}, {"target_unit": "updates", "target_interval": 3}, "3 updates: expected a divisor of `updates`, which is 128"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused(
    tmp_path: Path, resources: dict[str, Any], settings: dict[str, Any], fault: str
) -> None:
    content = study(resources, **settings)
    if resources:
        content["axes"]["framework"] = ["torch"]
    with pytest.raises(SpecError) as refusal:
        Library([]).study(str(write_yaml(tmp_path / "s.yaml", content)))
    assert any(fault in problem for problem in refusal.value.problems), refusal.value.problems


def test_a_compiled_environment_has_no_actors(tmp_path: Path) -> None:
    content = study(topology="pairwise", step_latency=0.1, epochs=2)
    content["axes"] = {"framework": ["jax"], "execution": ["fused"]}
    with pytest.raises(SpecError) as refusal:
        Library([]).study(str(write_yaml(tmp_path / "s.yaml", content)))
    text = "fused has the environment in the learner's program: {} does not apply"
    for key in ("topology", "step_latency", "epochs"):
        assert any(text.format(key) in problem for problem in refusal.value.problems)


def test_a_cell_has_as_many_ranks_as_it_needs() -> None:
    content = study({"nodes": 1})
    content["axes"] |= {
        "topology": [{"topology": "sequential"}, {"topology": "pairwise"}, {"topology": "collective", "actors": 4}]
    }
    points = list(expand(Study.model_validate(content)))
    assert [point.resources.tasks for point in points if point.config["seed"] == 1] == [1, 2, 5]
    content = study({}, topology="asynchronous", actors=2)
    assert {point.resources.tasks for point in expand(Study.model_validate(content))} == {3}


def test_ranks_that_share_cores_fit_where_others_do_not(tmp_path: Path, hpcrl: Callable[..., Shown]) -> None:
    content = study({"cpus": 1, "overcommit": True}, topology="collective", actors=64)
    plan = planned(tmp_path / "plan", content, "sol")
    (script,) = [path.read_text() for path in (plan / "scripts").iterdir() if "numpy" in path.name]
    assert "--ntasks=1\n" in script and "--ntasks=65 --cpus-per-task=1 --kill-on-bad-exit=1 --overcommit" in script
    (cell, *_) = cells_of(plan)
    assert (cell["resources"]["tasks"], cell["resources"]["overcommit"]) == (65, True)
    content["resources"]["overcommit"] = False
    other = planned(tmp_path / "other", content, "sol")
    assert cells_of(other)[0]["resources"].get("overcommit") is None
    assert cells_of(other)[0]["id"] != cell["id"]
    shown = hpcrl(
        "plan",
        "--study",
        write_yaml(tmp_path / "s.yaml", study({"overcommit": True}, topology="pairwise")),
        "-o",
        tmp_path / "p",
    )
    assert "of 2 ranks on 1 core in local" in shown.out
