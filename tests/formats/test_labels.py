from __future__ import annotations

from hpcrl.formats.labels import label


def test_a_cell_s_name_leaves_out_what_its_algorithm_determines() -> None:
    config = {"algorithm": "ppo", "environments": 4, "framework": "torch", "learning_rate": 0.1, "seed": 2}
    options = [{"algorithm": "ppo", "environments": 4}, {"algorithm": "dqn", "batch_size": 32}]
    axes = {"algorithm": options, "framework": ["torch"], "learning_rate": {"random": 2}}
    assert label(config, axes) == "ppo torch learning_rate 0.1 seed 2"
    several = {"algorithm": [*options, {"algorithm": "ppo", "environments": 8}]}
    assert label(config, several) == "ppo environments 4 torch learning_rate 0.1 seed 2"


def test_a_cell_s_name_leaves_out_what_its_topology_determines() -> None:
    options = [{"topology": "sequential", "updates": 1}, {"topology": "collective", "actors": 4, "updates": 100}]
    config = {"framework": "torch", "topology": "collective", "actors": 4, "updates": 100, "seed": 1}
    assert label(config, {"framework": ["torch"], "topology": options}) == "torch collective actors 4 seed 1"
    several = [*options, {"topology": "collective", "actors": 4, "updates": 25}]
    assert label(config, {"topology": several}) == "torch collective actors 4 updates 100 seed 1"
