"""Slurm."""

TITLE = "Slurm"
HERE = False
COMMAND = "sbatch"


def attempt(token: str, job_id: str, index: int | None) -> str:
    return job_id if index is None else f"{job_id}_{index}"
