"""What cells need of the site or of this machine, as far as it is known when they are planned."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Mapping
from typing import Any

from hpcrl.catalogue.environments import OWN_ENVIRONMENTS
from hpcrl.catalogue.training import ranks_with_actors
from hpcrl.rl.envs.offscreen import fault_of_drawing
from hpcrl.spec.cluster import ClusterProfile
from hpcrl.spec.workload import Workload


def mpi_notes(profile: ClusterProfile, workload: Workload, configs: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return a note on cells with actors, whose ranks talk over MPI, if this machine has no mpirun or if srun is not told the type of MPI;
    without the full stop.
    """
    if not any(ranks_with_actors({**workload.hyperparameters, **config}) for config in configs):
        return []
    if profile.scheduler.here:
        if shutil.which("mpirun"):
            return []
        return [
            "a learner and its actors need MPI, and this machine has no mpirun on PATH: install an MPI library (Debian: openmpi-bin), or load its module "
            "before `hpcrl submit`"
        ]
    launch = profile.launch
    if launch.mpi or any(argument.startswith("--mpi") for argument in launch.arguments):
        return []
    return [
        f"a learner and its actors need MPI, and the profile of {profile.name} has no `launch.mpi`: srun takes the site's default, which "
        "must suit the MPI library of the cells (`srun --mpi=list` shows what there is)"
    ]


def drawing_notes(profile: ClusterProfile, environments: Iterable[str], variables: Mapping[str, str]) -> list[str]:
    """Return a note on cells that run on this machine and see images, if nothing here can draw them; without the full stop."""
    drawn = [name for name in environments if name in OWN_ENVIRONMENTS and OWN_ENVIRONMENTS[name].drawn]
    wrong = fault_of_drawing({**os.environ, **variables}) if drawn and profile.scheduler.here else None
    return [f"environment {name}: {wrong}" for name in drawn] if wrong else []
