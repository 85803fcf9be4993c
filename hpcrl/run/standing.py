"""Check that a user's own environment has the modules of hpcrl's process: ``python -m hpcrl.run.standing [FRAMEWORK...]``."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec

# Modules that hpcrl imports besides the framework, with their minimum versions.
_LEAST = {"numpy": (1, 22), "psutil": (5, 9), "gymnasium": (1, 0)}


def lacks(modules: Sequence[str] = ()) -> str | None:
    """Say which of NumPy, psutil, gymnasium and further modules are missing in this environment; None if none is."""
    if not (missing := list(_missing(modules))):
        return None
    return f"{sys.prefix}: has no {' and no '.join(missing)}, which the cell needs: install it there, or name another environment"


def _missing(modules: Sequence[str]) -> Iterator[str]:
    for name in (*_LEAST, *modules):
        if find_spec(name) is None:
            yield name
        elif least := _LEAST.get(name):
            try:
                installed = version(name)
                old = tuple(int(part) for part in installed.split(".")[:2]) < least
            except (PackageNotFoundError, ValueError):  # installed without a version
                continue
            if old:
                yield f"{name} {least[0]}.{least[1]} or newer (it has {installed})"


def main(modules: Sequence[str]) -> int:
    """Check, import each module and print its version; return the exit code."""
    if wrong := lacks(modules):
        print(f"hpcrl: {wrong}", file=sys.stderr)
        return 1
    if modules:
        versions = [f"{name} {getattr(import_module(name), '__version__', 'imports')}" for name in (*_LEAST, *modules)]
        print(", ".join(versions))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
