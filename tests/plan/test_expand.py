from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError
from ruamel.yaml import YAML

from hpcrl.errors import UsageError
from hpcrl.plan.expand import Point, expand
from hpcrl.spec.library import Library
from hpcrl.spec.study import Study
from tests.builders import command_study, dqn_study, write_yaml


def points(tmp_path: Path, **changes: Any) -> list[Point]:
    study = Library().study(str(write_yaml(tmp_path / "s.yaml", command_study(["true"], **changes))))
    return list(expand(study))


def test_axes_times_seeds_in_order(tmp_path: Path) -> None:
    found = points(tmp_path, axes={"a": [1, 2], "b": ["x", "y"]}, seeds=2)
    assert [tuple(each.config.values()) for each in found][:3] == [(1, "x", 1), (1, "x", 2), (1, "y", 1)]
    assert len(found) == 8


def test_resources_are_no_configuration(tmp_path: Path) -> None:
    found = points(tmp_path, axes={"cpus": [1, 4], "where": [{"gpus": 1, "gpu_type": "a100"}, {"gpus": 0}]})
    assert all(set(each.config) == {"seed"} for each in found)
    assert [(each.resources.cpus, each.resources.gpus) for each in found] == [(1, 1), (1, 0), (4, 1), (4, 0)]


def test_exclude_and_include(tmp_path: Path) -> None:
    found = points(
        tmp_path,
        axes={"a": [1, 2, 3], "b": ["x", "y"]},
        exclude=[{"a": 1, "b": "y"}, {"a": [2, 3]}, {"seed": 2}],
        include=[{"a": 9, "b": "z"}],
        seeds=2,
    )
    assert [each.config for each in found] == [{"a": 1, "b": "x", "seed": 1}, {"a": 9, "b": "z", "seed": 1}]


def test_horovod_has_a_rank_for_each_gpu(tmp_path: Path) -> None:
    (found,) = points(tmp_path, axes={"parallelism": ["horovod"]}, resources={"gpus": 4})
    assert found.resources.tasks == 4


def test_every_node_of_a_horovod_cell_has_a_rank(tmp_path: Path) -> None:
    (found,) = points(tmp_path, axes={"parallelism": ["horovod"]}, resources={"nodes": 3})
    assert found.resources.tasks == 3


def test_a_point_knows_where_its_resources_are_set(tmp_path: Path) -> None:
    one, other, last = points(
        tmp_path,
        axes={"where": [{"cpus": 1, "memory": "1G"}, {"nodes": 2}]},
        include=[{"gpus": 1}],
        computed={"tasks": "nodes * 2"},
        resources={"time": "00:10:00"},
    )
    assert one.place_of(["memory", "cpus"]) == ("axes", "where", 0, "memory")
    assert other.place_of(["cpus", "nodes"]) == ("axes", "where", 1, "nodes")
    assert last.place_of(["gpus"]) == ("include", 0, "gpus")
    assert last.place_of(["tasks"]) == ("computed", "tasks")
    assert last.place_of(["time"]) == ("resources", "time")
    assert last.place_of(["placement"]) == ("placement",)
    assert last.place_of([]) == ("resources",)


def test_no_cell_is_left(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no cell is left, because its `exclude` rules match all cells"):
        points(tmp_path, exclude=[{"variant": "a"}])


def test_ten_million_cells(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"expected at most 1,000,000 cells, got 10,000,000"):
        points(tmp_path, axes={"a": list(range(1000)), "b": list(range(100))}, seeds=100)


@pytest.mark.parametrize(
    ("axes", "expected"),
    [
        ({"framework": ["numpy"], "execution": ["lazy"]}, r"numpy: execution: expected one of eager, got 'lazy'"),
        ({"framework": ["torch"], "execution": ["fused"]}, "torch: execution: expected one of .*, got 'fused'"),
        (
            {"framework": ["mxnet"], "parallelism": ["native"]},
            r"mxnet: parallelism: expected one of none, horovod, got 'native'",
        ),
        (
            {"framework": ["jax"], "execution": ["fused"], "parallelism": ["horovod"]},
            "fused supports a single process only",
        ),
    ],
)
def test_what_a_framework_cannot_do_is_refused_with_the_rule_that_leaves_it_out(
    axes: dict[str, list[str]], expected: str
) -> None:
    with pytest.raises(ValidationError, match=expected + ".*exclude: ") as caught:
        Study.model_validate(dqn_study(axes=axes))
    named = re.search(r"exclude: (\[.*?\])`", str(caught.value))
    assert named is not None
    rules = YAML(typ="safe").load(named[1])
    other = {"framework": "jax", "execution": "lazy"}
    kept = Study.model_validate(dqn_study(axes=axes, exclude=rules, include=[other]))
    assert [point.config["execution"] for point in expand(kept)] == ["lazy"]


def test_without_axes_there_is_a_cell_for_each_seed_or_for_each_included_one(tmp_path: Path) -> None:
    study = command_study(["true"], seeds=2)
    del study["axes"]
    library = Library()
    found = expand(library.study(str(write_yaml(tmp_path / "s.yaml", study))))
    assert [point.config for point in found] == [{"seed": 1}, {"seed": 2}]
    found = expand(library.study(str(write_yaml(tmp_path / "s.yaml", study | {"include": [{"variant": "a"}]}))))
    assert [point.config for point in found] == [{"variant": "a", "seed": 1}, {"variant": "a", "seed": 2}]


def test_a_cell_always_says_its_execution_mode() -> None:
    implicit = Study.model_validate(
        dqn_study(axes={"framework": ["torch", "numpy"]}, exclude=[{"framework": "torch", "execution": "lazy"}])
    )
    explicit = Study.model_validate(dqn_study(axes={"framework": ["torch", "numpy"], "execution": ["eager"]}))
    assert [point.config for point in expand(implicit)] == [point.config for point in expand(explicit)]
    assert list(next(expand(implicit)).config.items()) == [("framework", "torch"), ("execution", "eager"), ("seed", 1)]
    without = Study.model_validate(
        dqn_study(axes={"framework": ["torch", "numpy"]}, exclude=[{"execution": "eager", "framework": "torch"}])
    )
    assert [point.config["framework"] for point in expand(without)] == ["numpy"]
