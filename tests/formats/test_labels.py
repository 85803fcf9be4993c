from __future__ import annotations

from hpcrl.formats.labels import label


def test_a_cell_s_name_leaves_out_what_its_algorithm_determines() -> None:
    config = {"algorithm": "ppo", "environments": 4, "framework": "torch", "learning_rate": 0.1, "seed": 2}
    options = [{"algorithm": "ppo", "environments": 4}, {"algorithm": "dqn", "batch_size": 32}]
    axes = {"algorithm": options, "framework": ["torch"], "learning_rate": {"random": 2}}
    assert label(config, axes) == "ppo torch learning_rate 0.1 seed 2"
    several = {"algorithm": [*options, {"algorithm": "ppo", "environments": 8}]}
    assert label(config, several) == "ppo environments 4 torch learning_rate 0.1 seed 2"
