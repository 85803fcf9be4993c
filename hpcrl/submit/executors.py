"""submitit's executors, made to hand over the very scripts that `plan` wrote.

A job array goes as one submission whose script says ``--array``: submitit's own array path would build a plain
executor inside and drop our script.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import submitit
from submitit.core.utils import FailedJobError

from hpcrl.errors import HpcrlError

FOLDER = "submitit"


def _done_by_the_script() -> None:
    """Stand in for the function that submitit wants: the script itself runs the cells."""


class ScriptExecutor(submitit.SlurmExecutor):
    """Submits one prepared script from the plan directory."""

    def __init__(self, directory: Path) -> None:
        try:
            super().__init__(folder=directory / FOLDER)
        except RuntimeError:
            raise HpcrlError("srun: no such command: is Slurm installed here? (--executor local needs none)") from None
        self._throttling = 0.0  # its pause between submissions
        self._directory = directory.resolve()
        self._script = ""
        self._options: Sequence[str] = ()

    def submit_script(self, script: str, options: Sequence[str]) -> str:
        """Hand a script to sbatch, with options, and return the job id.

        Raises:
            HpcrlError: sbatch refuses it, in sbatch's words.
        """
        self._script, self._options = script, options
        try:
            return str(self.submit(_done_by_the_script).job_id)
        except FailedJobError as error:
            for leftover in (self._directory / FOLDER).glob(".submission_file_*.sh"):
                leftover.unlink()
            message = " ".join(str(error).replace("sbatch: error:", "").split())
            raise HpcrlError(f"sbatch refused it: {message}") from None

    def _make_submission_file_text(self, command: str, uid: str) -> str:
        return self._script

    def _make_submission_command(self, submission_file_path: Path) -> list[str]:
        inherited = [word for name in os.environ if name.startswith("SBATCH_") for word in ("-u", name)]
        return [
            "env",
            *inherited,
            f"--chdir={self._directory}",
            "sbatch",
            *self._options,
            str(submission_file_path.resolve()),
        ]
