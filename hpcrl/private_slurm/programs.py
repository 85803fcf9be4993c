"""The programs that a private Slurm needs."""

from __future__ import annotations

import os
import shutil

from hpcrl.errors import HpcrlError

PROGRAMS = (
    "munged",
    "mariadbd",
    "mariadb-install-db",
    "slurmdbd",
    "slurmctld",
    "slurmd",
    "sacctmgr",
    "sbatch",
)
PACKAGES = "slurm-wlm slurmdbd munge mariadb-server libpmix-dev"


def missing_programs() -> list[str]:
    """Return the programs that a private Slurm needs and that are not installed."""
    return [name for name in PROGRAMS if _find(name) is None]


def _find(name: str, path: str | None = None) -> str | None:
    return shutil.which(name, path=path or os.environ.get("PATH", "") + ":/usr/sbin:/sbin")


def program(name: str, path: str | None = None) -> str:
    """Return the path of a program.

    Raises:
        HpcrlError: it is not installed.
    """
    executable = _find(name, path)
    if executable is None:
        raise HpcrlError(f"{name}: not installed: apt-get install {PACKAGES}")
    return executable
