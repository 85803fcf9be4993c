"""Compile a C program with the site's MPI compiler, then become it: ``python compiled.py heat.c ARGUMENTS``.

Each rank compiles for itself into a directory of its node, which takes a fraction of a second and needs no other rank.
``$MPICC`` names another compiler than mpicc, such as ``cc`` on a Cray.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path


def main() -> None:
    """Compile and run."""
    source = Path(sys.argv[1])
    compiler = shlex.split(os.environ.get("MPICC", "mpicc"))
    place = Path(tempfile.mkdtemp(prefix="heat-"))
    program = place / source.stem
    try:
        done = subprocess.run([*compiler, "-O2", "-o", program, source, "-lm"], check=False).returncode
    except OSError as error:
        sys.exit(
            f"{compiler[0]}: cannot be started ({error.strerror}): load an MPI library, or name its compiler in $MPICC"
        )
    if done:
        sys.exit(f"{source}: {compiler[0]} ended with exit code {done}")
    opened = os.open(program, os.O_RDONLY)
    program.unlink()  # nothing is left behind, however the program ends
    place.rmdir()
    os.execve(opened, [str(program), *sys.argv[2:]], os.environ)


if __name__ == "__main__":
    main()
