from __future__ import annotations

from hpcrl.run.allocation import read_allocation


def test_a_task_of_an_array_on_a_named_node() -> None:
    found = read_allocation(
        {
            "SLURM_JOB_ID": "99", "SLURM_ARRAY_JOB_ID": "7", "SLURM_ARRAY_TASK_ID": "3", "SLURM_PROCID": "1",
            "SLURM_NTASKS": "2", "SLURM_LOCALID": "0", "SLURMD_NODENAME": "n2", "SLURM_RESTART_COUNT": "1",
        }
    )  # fmt: skip
    assert (found.key, found.attempt, found.node, found.rank, found.ranks, found.restarts) == (
        "7_3",
        "7_3-1",
        "n2",
        1,
        2,
        1,
    )


def test_without_slurm() -> None:
    found = read_allocation({"HPCRL_ATTEMPT": "local-x_0", "HPCRL_RANK": "1", "HPCRL_RANKS": "2"})
    assert (found.key, found.attempt, found.rank, found.ranks) == (None, "local-x_0", 1, 2)
    assert read_allocation({}).attempt.startswith("byhand-")
