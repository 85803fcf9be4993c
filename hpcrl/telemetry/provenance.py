"""Machine and software of a record."""

from __future__ import annotations

import os
import platform
import re
import subprocess
import sys
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from typing import Any

import psutil

from hpcrl.catalogue.registry import frameworks
from hpcrl.secrets import looks_secret
from hpcrl.telemetry.cgroup import allowed_memory

_PACKAGES = (
    "gymnasium",
    *(package for framework in frameworks().values() for package in framework.packages),
    "horovod",
    "mpi4py",
)


def hardware() -> dict[str, Any]:
    """Describe this node: processor, cores, memory in bytes, GPUs, operating system, kernel."""
    return {
        "cpu": _cpu_model(),
        "cores": psutil.cpu_count(logical=False) or 0,
        "threads": psutil.cpu_count() or 0,
        "cores_allowed": len(os.sched_getaffinity(0)),
        "memory": psutil.virtual_memory().total,
        "memory_allowed": allowed_memory(),
        "gpus": list(visible_gpus().values()),
        "gpu_driver": gpu_driver(),
        **_operating_system(),
        "kernel": platform.release(),
        "virtual": virtual(),
        "machine": platform.machine(),
        "host": platform.node(),
    }


def _cpu_model() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:  # noqa: PTH123
            for line in file:
                if line.startswith("model name"):
                    return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def _operating_system() -> dict[str, str | None]:
    try:
        release = platform.freedesktop_os_release()
    except OSError:
        return {"os": platform.system(), "os_version": None}
    return {"os": release["NAME"], "os_version": release.get("VERSION_ID") or release.get("VERSION")}


def virtual(root: Path = Path("/")) -> str | None:
    """Say whether this is a virtual machine, with its maker, or a container: "no" if neither; None if that is not known."""
    try:
        flags = re.search(r"^flags\s*:(.*)", (root / "proc/cpuinfo").read_text(), re.MULTILINE)  # of x86 only
    except OSError:
        flags = None
    kinds = []
    if flags and "hypervisor" in flags[1].split():
        names = [_text(root / f"sys/class/dmi/id/{name}") for name in ("sys_vendor", "product_name")]
        kinds.append(" ".join(["virtual machine", *(f"{name}" for name in names if name)]))
    if any((root / name).exists() for name in (".dockerenv", "run/.containerenv", "run/systemd/container")):
        kinds.append("container")
    return ", ".join(kinds) or ("no" if flags else None)


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return ""


def gpu_driver() -> str | None:
    """Return the version of the NVIDIA driver; None without one."""
    try:
        import pynvml

        pynvml.nvmlInit()
        return str(pynvml.nvmlSystemGetDriverVersion())
    except Exception:  # any failure of a vendor's library means: no driver to report
        return None


def visible_gpus() -> dict[str, str]:
    """Return the models of the visible GPUs by their names in ``CUDA_VISIBLE_DEVICES``; without a driver, none."""
    try:
        import pynvml

        pynvml.nvmlInit()
        return {name: str(pynvml.nvmlDeviceGetName(gpu)) for name, gpu in gpu_handles(pynvml).items()}
    except Exception:  # any failure of a vendor's library means: no GPU to report
        return {}


def gpu_handles(nvml: Any) -> dict[str, Any]:
    """Return NVML handles of the visible GPUs by their names in ``CUDA_VISIBLE_DEVICES``.

    Parse the variable as CUDA does: indices, UUIDs or UUID prefixes, MIG slices. The first invalid entry hides itself and
    everything after it (CUDA C++ Programming Guide, CUDA Environment Variables).
    """
    every = []
    for index in range(nvml.nvmlDeviceGetCount()):
        with suppress(nvml.NVMLError_NoPermission):  # a GPU of another job, which CUDA does not count
            every.append(nvml.nvmlDeviceGetHandleByIndex(index))
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    if named is None:
        return {str(index): gpu for index, gpu in enumerate(every)}
    handles = {}
    for name in map(str.strip, named.split(",")):
        if (gpu := _gpu(nvml, every, name)) is None:
            break
        handles[name] = gpu
    return handles


def _gpu(nvml: Any, every: list[Any], name: str) -> Any:
    if name.isdecimal():
        return every[int(name)] if int(name) < len(every) else None
    if name.startswith("MIG-"):
        with suppress(nvml.NVMLError):
            return nvml.nvmlDeviceGetHandleByUUID(name)
    alike = [gpu for gpu in every if name.startswith("GPU-") and nvml.nvmlDeviceGetUUID(gpu).startswith(name)]
    return alike[0] if len(alike) == 1 else None


def software() -> dict[str, str]:
    """Return the versions of Python and of the packages that a result depends on."""
    versions = {"python": ".".join(map(str, sys.version_info[:3]))}
    for name in _PACKAGES:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return versions


def software_in(place: Path) -> dict[str, str]:
    """Return the same of a venv or conda environment, as far as its files say it."""
    versions: dict[str, str] = {}
    for folder in sorted(place.glob("lib/python3*/site-packages")):
        versions["python"] = folder.parent.name.removeprefix("python")
        for distribution in metadata.distributions(path=[str(folder)]):
            name = (distribution.metadata["Name"] or "").lower()
            if name in _PACKAGES:
                versions[name] = distribution.version
    return versions


# All variables of pure computing libraries. Of frameworks only those that are known to change results or speed,
# because their other variables contain tokens, keys and addresses.
_NUMERIC_FAMILIES = (
    "OPENBLAS_", "OMP_", "MKL_", "BLIS_", "GOTO_", "CUBLAS_", "XLA_", "TORCHINDUCTOR_", "TORCHDYNAMO_",
    "OMPI_MCA_btl", "OMPI_MCA_pml", "OMPI_MCA_mtl", "OMPI_MCA_coll",
)  # fmt: skip
_NUMERIC = frozenset(
    f"{family}_{name}"
    for family, names in {
        "TF": "ENABLE_ONEDNN_OPTS DETERMINISTIC_OPS CUDNN_DETERMINISTIC CUDNN_USE_AUTOTUNE NUM_INTRAOP_THREADS NUM_INTEROP_THREADS "
        "XLA_FLAGS CPP_MIN_LOG_LEVEL FORCE_GPU_ALLOW_GROWTH GPU_ALLOCATOR GPU_THREAD_MODE GPU_THREAD_COUNT USE_LEGACY_KERAS "
        "ENABLE_CUBLAS_TENSOR_OP_MATH_FP32 ENABLE_CUDNN_TENSOR_OP_MATH_FP32",
        "TORCH": "ALLOW_TF32_CUBLAS_OVERRIDE CUDNN_V8_API_DISABLED NUM_THREADS COMPILE_DISABLE BLAS_PREFER_CUBLASLT",
        "PYTORCH": "CUDA_ALLOC_CONF NO_CUDA_MEMORY_CACHING JIT",
        "JAX": "ENABLE_X64 DISABLE_JIT DEFAULT_MATMUL_PRECISION DEFAULT_PRNG_IMPL DEFAULT_DTYPE_BITS PLATFORMS PLATFORM_NAME "
        "NUM_CPU_DEVICES DEBUG_NANS NUMPY_DTYPE_PROMOTION THREEFRY_PARTITIONABLE",
        "HOROVOD": "CYCLE_TIME FUSION_THRESHOLD CACHE_CAPACITY HIERARCHICAL_ALLREDUCE HIERARCHICAL_ALLGATHER AUTOTUNE CONTROLLER "
        "CPU_OPERATIONS GPU_OPERATIONS NUM_NCCL_STREAMS BATCH_D2D_MEMCOPIES THREAD_AFFINITY",
        "NVIDIA_TF32": "OVERRIDE",
        "OMPI_MCA": "mpi_yield_when_idle",
    }.items()
    for name in names.split()
)


def numeric_variables() -> dict[str, str]:
    """Return the environment variables that change how libraries compute: kernels, threads, precision.

    ``OPENBLAS_CORETYPE`` alone changes the last digits, and so the training run of a seed.
    """
    return {
        name: value
        for name, value in sorted(os.environ.items())
        if (name in _NUMERIC or name.startswith(_NUMERIC_FAMILIES))
        and not name.upper().endswith(("_DIR", "_DIRECTORY", "_FILE", "_PATH"))
        and not looks_secret(name)
    }


def code(directory: Path | None = None) -> dict[str, Any]:
    """Return the git commit of a directory, by default the working one, whether it has changes, and the modules loaded."""
    commit = _git(directory, "rev-parse", "HEAD")
    changes = _git(directory, "status", "--porcelain", "--untracked-files=no") if commit else None
    return {
        "git_commit": commit,
        "git_dirty": None if changes is None else bool(changes),
        "modules": os.environ.get("LOADEDMODULES") or None,
    }


def _git(directory: Path | None, *arguments: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", *arguments], cwd=directory, capture_output=True, text=True, timeout=20, check=False
        )
    except (OSError, subprocess.SubprocessError):  # no git here, or a file system that hangs
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def slurm_variables() -> dict[str, str]:
    """Return Slurm's variables of this job."""
    wanted = (
        "JOB_ID",
        "ARRAY_JOB_ID",
        "ARRAY_TASK_ID",
        "JOB_PARTITION",
        "JOB_QOS",
        "JOB_NODELIST",
        "RESTART_COUNT",
        "CLUSTER_NAME",
    )
    return {name: os.environ[f"SLURM_{name}"] for name in wanted if f"SLURM_{name}" in os.environ}
