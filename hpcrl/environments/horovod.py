"""Build Horovod from its released source distribution for an environment, once per content.

Horovod 0.28.1 is older than today's frameworks. A wrapper around the compiler makes the necessary changes, so
that the sources stay as released:

- today's headers need C++17, but its CMake files ask for C++11 or 14;
- one TensorFlow file needs a header that TensorFlow's wheels no longer contain: it is compiled empty, which removes
  only the all-reduce inside XLA;
- debug information is left out, because it takes most of the compiler's memory;
- for GPUs nvcc also gets C++17, and the directories of CUDA and NCCL.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from hpcrl.environments.commands import call
from hpcrl.errors import HpcrlError
from hpcrl.formats.plan import Environment
from hpcrl.pins import Requirement

_COMPILER = """\
#!/bin/sh
# Between Horovod's build and the compiler; see hpcrl/environments/horovod.py.
for word; do
  shift
  case "$word" in
    -std=c++11|-std=c++14|-std=gnu++11|-std=gnu++14) word=-std=c++17 ;;
    -g) continue ;;
    */xla_mpi_ops.cc) word="${0%/*}/empty.cc" ;;
  esac
  set -- "$@" "$word"
done
exec "${HPCRL_CXX:-g++}" "$@"
"""
_MEMORY_PER_JOB = 2 * 1024**3  # bytes; the largest files take 1.5 GB


def wheel(environment: Environment, path: Path, root: Path, versions: dict[str, str], setup: Sequence[str]) -> Path:
    """Return the wheel of the environment's source build, cached or built now.

    Args:
        path: the environment, with all other packages installed.
        root: directory of the environments; wheels are cached below it.
        versions: the versions of the environment's modules, for which the wheel is built.

    Raises:
        HpcrlError: a compiler, CMake, MPI or CUDA is missing or of another version, or the build fails.
    """
    assert environment.build is not None
    compiler = os.environ.get("CXX", "g++")
    extra = {"PATH": f"{path / 'bin'}{os.pathsep}{os.environ.get('PATH', '')}"}
    cuda = environment.flavour == "cuda"
    wanted = (compiler, "cmake", "mpicxx", *(["nvcc"] if cuda else []))
    tools = {name: _version(name, setup, extra) for name in wanted}
    missing = [name for name, version in tools.items() if version is None]
    if environment.settings.get("HOROVOD_WITH_MPI") != "1" and "mpicxx" in missing:
        missing.remove("mpicxx")
    if missing:
        raise HpcrlError(
            f"{environment.key}: Horovod is built from source, but tools are missing here ({', '.join(missing)}): load the site's "
            f"modules, or install g++, cmake, libopenmpi-dev and openmpi-bin{' and the CUDA toolkit' if cuda else ''}"
        )
    if cuda:
        _check_cuda(environment, str(tools["nvcc"]))
    here = environment.key if cuda else ""  # a wheel contains the path of the NCCL libraries
    content = [here, environment.build, environment.settings, versions, environment.python, platform.machine(), tools]
    digest = hashlib.sha256(json.dumps([*content, _COMPILER], sort_keys=True).encode()).hexdigest()[:16]
    kept = root / "wheels" / digest
    if not (wheels := list(kept.glob("*.whl"))):
        kept.parent.mkdir(exist_ok=True)
        with TemporaryDirectory(dir=kept.parent, prefix=f".{digest}-") as place:
            build = Path(place)
            (build / "c++").write_text(_COMPILER)
            (build / "c++").chmod(0o755)
            (build / "empty.cc").touch()
            jobs = str(max(1, min(len(os.sched_getaffinity(0)), _memory() // _MEMORY_PER_JOB)))
            if cuda:
                extra |= _cuda(environment, path, setup, extra)
            extra |= environment.settings
            extra["PYTHONSAFEPATH"] = ""  # its setup.py lies in the directory in which it runs
            extra |= {"CXX": str(build / "c++"), "HPCRL_CXX": compiler, "MAKEFLAGS": f"-j{jobs}"}
            extra["CMAKE_BUILD_PARALLEL_LEVEL"] = jobs
            words: list[str | Path] = [sys.executable, "-P", "-m", "pip", "--python", path / "bin/python", "wheel"]
            words += ["--quiet", "--no-build-isolation", "--no-deps", "--no-cache-dir", "--wheel-dir", build / "out"]
            failed = f"{environment.key}: building {environment.build} failed"
            source = Requirement(environment.build, tuple(environment.build_hashes))
            (build / "source.txt").write_text(source.to_line() + "\n")
            words += ["-r", build / "source.txt", *(["--require-hashes"] if source.hashes else [])]
            call(words, setup, extra, failed, kept.with_suffix(".log"))
            try:
                (build / "out").rename(kept)
            except OSError:  # another builder was faster
                shutil.rmtree(build / "out")
        wheels = list(kept.glob("*.whl"))
    return wheels[0]


def _check_cuda(environment: Environment, nvcc: str) -> None:
    wanted = re.search(r"^nvidia-cuda-runtime[a-z0-9-]*===?(\d+)\.", environment.requirements, re.MULTILINE)
    release = re.search(r"release (\d+)\.", nvcc)
    if wanted and release and wanted[1] != release[1]:
        raise HpcrlError(
            f"{environment.key}: expected nvcc of CUDA {wanted[1]}, as its packages, got CUDA {release[1]}: load the "
            f"site's module of CUDA {wanted[1]}, or name it in the profile's environments.setup"
        )


def _cuda(environment: Environment, path: Path, setup: Sequence[str], extra: Mapping[str, str]) -> dict[str, str]:
    """Return the variables by which the build finds nvcc's toolkit and, if the environment has it, NCCL."""
    values = {"NVCC_APPEND_FLAGS": "-std=c++17"}
    # nvcc may be a script or a link; its own output names its toolkit.
    said = call(["sh", "-c", "nvcc --dryrun -x cu /dev/null 2>&1; true"], setup, extra)
    here = re.search(r"_HERE_=(.+)", said)
    if home := os.environ.get("CUDA_HOME") or (str(Path(here[1]).parent) if here else None):
        values |= dict.fromkeys(("CUDA_HOME", "CUDAToolkit_ROOT", "HOROVOD_CUDA_HOME"), home)
    nccl = path / f"lib/python{environment.python}/site-packages/nvidia/nccl"
    if (nccl / "lib/libnccl.so.2").exists() and "HOROVOD_NCCL_HOME" not in os.environ:
        link = nccl / "lib/libnccl.so"  # the linker needs it, and the package does not contain it
        if not link.exists():
            link.symlink_to("libnccl.so.2")
        values |= {"HOROVOD_NCCL_HOME": str(nccl), "HOROVOD_NCCL_LINK": "SHARED"}
    return values


def _version(program: str, setup: Sequence[str], extra: dict[str, str]) -> str | None:
    try:
        return call([program, "--version"], setup, extra)
    except HpcrlError:
        return None


def _memory() -> int:
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
