"""What cells need of the site or of this machine, as far as it is known when they are planned."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterable, Mapping
from typing import Any

from hpcrl.catalogue.environments import OWN_ENVIRONMENTS
from hpcrl.catalogue.training import ranks_with_actors
from hpcrl.errors import HpcrlError
from hpcrl.rl.envs.offscreen import fault_of_drawing, fault_of_name
from hpcrl.slurm.client import run_command
from hpcrl.spec.cluster import ClusterProfile
from hpcrl.spec.workload import Workload

_SRUN_SECONDS = 10.0


def mpi_notes(profile: ClusterProfile, workload: Workload, configs: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return a note on cells with actors, whose ranks talk over MPI, if this machine has no mpirun or if srun is not told the type of MPI;
    without the full stop.
    """
    given = workload.trained_with
    if given is None or not any(ranks_with_actors({**given, **config}) for config in configs):
        return []
    if profile.scheduler.here:
        if shutil.which("mpirun"):
            return []
        return [
            "a learner and its actors need MPI, and this machine has no mpirun on PATH: install an MPI library (Debian: openmpi-bin), or load its module "
            "before `hpcrl submit`"
        ]
    launch = profile.launch
    if launch.mpi and (there := mpi_types()) and launch.mpi not in there:
        return [
            f"`launch.mpi` of {profile.name} is {launch.mpi}, and srun on this machine knows {', '.join(sorted(there))} (`srun --mpi=list`): if it is that "
            "site's, set one of these"
        ]
    if launch.mpi or any(argument.startswith("--mpi") for argument in launch.arguments):
        return []
    return [
        f"a learner and its actors need MPI, and the profile of {profile.name} has no `launch.mpi`: srun takes the site's default, which "
        "must suit the MPI library of the cells (`srun --mpi=list` shows what there is)"
    ]


def mpi_types() -> set[str]:
    """Return the types of MPI that srun on this machine knows; empty without srun, or if it does not say."""
    if not shutil.which("srun"):
        return set()
    try:
        said = run_command(["srun", "--mpi=list"], timeout=_SRUN_SECONDS)
    except HpcrlError:
        return set()
    text = f"{said.out}\n{said.err}"
    versions = re.findall(r"available: *(.+)", text)
    names = {name.strip() for line in versions for name in line.split(",")}
    return names | set(re.findall(r"^(?:srun:)?\s*([\w.-]+)$", text, re.MULTILINE))


def drawing_notes(profile: ClusterProfile, environments: Iterable[str], variables: Mapping[str, str]) -> list[str]:
    """Return notes on cells that run on this machine with MuJoCo, if nothing here can draw the images that they see, or if MUJOCO_GL is none that it knows;
    without the full stop.
    """
    if not profile.scheduler.here:
        return []
    known, notes = {**os.environ, **variables}, []
    for name in environments:
        is_drawn = name in OWN_ENVIRONMENTS and OWN_ENVIRONMENTS[name].drawn
        wrong = fault_of_drawing(known) if is_drawn else fault_of_name(name, known)
        notes += [f"environment {name}: {wrong}"] if wrong else []
    return notes
