"""The version of the running code, with a digest that differs whenever the code differs."""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path


@cache
def full_version(released: str) -> str:
    """Return the released version with a digest of the package's sources, such as ``0.1.0+5f0c1a2b`` (PEP 440)."""
    package = Path(__file__).parent.parent
    digest = hashlib.sha256()
    for file in sorted(package.rglob("*.py")):
        digest.update(f"{file.relative_to(package)}\0".encode() + file.read_bytes() + b"\0")
    return f"{released}+{digest.hexdigest()[:8]}"
