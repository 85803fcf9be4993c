from __future__ import annotations

import os
import subprocess
import sys

import pytest

from hpcrl.formats.attempts import Start
from hpcrl.formats.plan import Cell
from hpcrl.run.allocation import limit_threads, read_allocation, start_of


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


def test_two_starts_of_one_job_differ_and_ranks_of_one_do_not() -> None:
    cell = Cell("c", {}, {}, "e")
    job = {"SLURM_ARRAY_JOB_ID": "7", "SLURM_ARRAY_TASK_ID": "3", "SLURM_NTASKS": "2"}

    def start(attempt: int | None = 1, **variables: str) -> Start:
        environment = job | variables
        return start_of(cell, attempt, read_allocation(environment), environment)

    first = start(SLURM_PROCID="0", HPCRL_START="n1-5-77")
    assert first == Start("c", "1", 0, "7_3", "n1-5-77")
    assert start(SLURM_PROCID="1", HPCRL_START="n1-5-77") == first
    assert start(SLURM_PROCID="0", HPCRL_START="n2-5-78").mark != first.mark
    # A site's own template sets no mark: each srun has a port of its own.
    assert start(SLURM_SRUN_COMM_PORT="4001").mark != start(SLURM_SRUN_COMM_PORT="4002").mark
    assert start(None, SLURM_RESTART_COUNT="2") == Start("c", "7_3", 2, "7_3", "7_3-2")


@pytest.mark.parametrize(
    ("named", "rank", "cores"),
    [("", 0, [1, 2]), ("", 1, [4, 6]), ("", 2, [8]), ("4,8", 0, [4, 8]), ("4,9", 1, [4, 6])],
)
def test_each_rank_is_bound_to_cores_of_its_own(
    monkeypatch: pytest.MonkeyPatch, named: str, rank: int, cores: list[int]
) -> None:
    bound: list[list[int]] = []
    monkeypatch.setattr(os, "environ", {"HPCRL_CORES": named, "OMP_NUM_THREADS": "64"})
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {1, 2, 4, 6, 8})
    monkeypatch.setattr(os, "sched_setaffinity", lambda process, given: bound.append(list(given)))
    limit_threads(2, rank)
    assert bound == [cores]
    assert os.environ["OMP_NUM_THREADS"] == os.environ["MKL_NUM_THREADS"] == "2"


def test_no_library_with_threads_is_imported_before_their_number_is_set() -> None:
    """OpenBLAS starts its threads when NumPy is imported: one for each core of the node, whatever is set later."""
    code = (
        "import sys, hpcrl.run.__main__; print([name for name in ('numpy', 'torch', 'optuna') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
