from __future__ import annotations

import os

import pytest

from hpcrl.rl.distributed.group import Group
from hpcrl.run import training


@pytest.mark.parametrize(
    ("named", "there", "resources", "expected"),
    [
        ("3,5", 8, {"gpus": 2}, "5"),
        (None, 2, {"gpus": 2}, "1"),  # nobody has chosen, as where a cell is run by hand
        ("GPU-ab", 8, {"gpus": 1}, "GPU-ab"),
        (None, 2, {"gpus": 0}, None),
        ("", 2, {"gpus": 0}, ""),
    ],
)
def test_each_rank_of_a_node_has_a_gpu_of_its_own(
    monkeypatch: pytest.MonkeyPatch, named: str | None, there: int, resources: dict[str, int], expected: str | None
) -> None:
    """Driverless: NVML's list is a stand-in."""
    monkeypatch.setattr(os, "environ", {} if named is None else {"CUDA_VISIBLE_DEVICES": named})
    monkeypatch.setattr(training, "visible_gpus", lambda: dict.fromkeys(map(str, range(there)), "A100"))
    training.before_import({"framework": "numpy"}, {"cpus": 1, **resources}, Group(rank=1, ranks=2, local_rank=1))
    assert os.environ.get("CUDA_VISIBLE_DEVICES") == expected
