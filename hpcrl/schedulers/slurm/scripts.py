"""submitit's executor, changed to submit the scripts that `plan` wrote.

A job array is one submission with ``--array`` in its script: submitit's own array code would build a plain
executor inside and drop our script. sbatch itself is called through :mod:`hpcrl.slurm.client`: submitit takes any
error for a refusal and any "job 42" in the output for an answer.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import submitit

from hpcrl.errors import HpcrlError
from hpcrl.formats.queues import QUEUE_LOGS
from hpcrl.slurm.client import Say, Slurm


def _done_by_the_script() -> None:
    """Stand in for the function that submitit wants: the script itself runs the cells."""


class ScriptExecutor(submitit.SlurmExecutor):
    """Submits one prepared script from the plan directory."""

    def __init__(self, directory: Path, slurm: Slurm, say: Say) -> None:
        try:
            super().__init__(folder=directory / QUEUE_LOGS)
        except RuntimeError:
            raise HpcrlError("srun: no such command: is Slurm installed here? (--executor local needs none)") from None
        self._throttling = 0.0  # its pause between submissions
        self._directory = directory.resolve()
        self._slurm, self._say = slurm, say
        self._script = ""
        self._options: Sequence[str] = ()
        self._arguments: Sequence[str] = ()

    def submit_script(self, script: str, options: Sequence[str], arguments: Sequence[str]) -> str:
        """Submit a script with sbatch, with options before it and arguments after it, and return the job id.

        Raises:
            Refused: sbatch refuses it, in sbatch's words.
            Unconfirmed: sbatch does not say whether it took it.
        """
        self._script, self._options, self._arguments = script, options, arguments
        try:
            return str(self.submit(_done_by_the_script).job_id)
        finally:
            for leftover in (*self._leftovers(), *(self._directory / QUEUE_LOGS).glob("[0-9a-f]" * 32 + ".pkl")):
                leftover.unlink(missing_ok=True)

    def _leftovers(self) -> Sequence[Path]:
        return list((self._directory / QUEUE_LOGS).glob(".submission_file_*.sh"))

    def _submit_command(self, command: str) -> Any:
        folder = self._directory / QUEUE_LOGS
        folder.mkdir(exist_ok=True)
        path = folder / f".submission_file_{uuid.uuid4().hex}.sh"
        path.write_text(self._script, encoding="utf-8")
        job_id = self._slurm.sbatch(path, self._options, self._arguments, self._directory, self._say)
        job = self.job_class(folder=folder, job_id=job_id, tasks=[0])
        job.paths.move_temporary_file(path, "submission_file", keep_as_symlink=True)
        return job
