"""The embedded default cluster: the `workstation` profile with this machine's cores, memory and GPUs."""

from __future__ import annotations

import os
import re

import psutil

from hpcrl.spec.cluster import ClusterProfile, Gpus
from hpcrl.telemetry.provenance import gpu_handles


def with_this_machine(profile: ClusterProfile) -> ClusterProfile:
    """Replace the node types of a profile without a scheduler by the resources of this machine that this process may use."""
    name, node = next(iter(profile.node_types.items()))
    here = node.model_copy(
        update={
            "count": 1,
            "cores": len(os.sched_getaffinity(0)),
            "memory": psutil.virtual_memory().total // 1024**2,
            "gpus": _gpus(),
        }
    )
    return profile.model_copy(update={"node_types": {name: here}})


def _gpus() -> Gpus | None:
    import pynvml

    try:
        pynvml.nvmlInit()
        visible = list(gpu_handles(pynvml).values())
        if not visible:
            return None
        name = pynvml.nvmlDeviceGetName(visible[0])
        memory = pynvml.nvmlDeviceGetMemoryInfo(visible[0]).total // 1024**2
    except pynvml.NVMLError:
        return None
    return Gpus.model_validate({"type": gpu_type(name), "count": len(visible), "memory": f"{memory}M"})


def gpu_type(product: str) -> str:
    """Turn NVML's product name into the name at Slurm sites: ``NVIDIA A100-SXM4-80GB`` -> ``a100``."""
    words = re.findall(r"[A-Za-z]*\d+[A-Za-z]*", product)
    return words[0].lower() if words else re.sub(r"\W+", "-", product).strip("-").lower()
