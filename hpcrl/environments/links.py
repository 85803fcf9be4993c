"""Directories and pages with wheels that are not in the package index."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence


def find_links_options(links: Sequence[str]) -> list[str]:
    """Return them as options of pip and uv."""
    return [word for link in links for word in ("--find-links", link)]


def configured_links() -> list[str]:
    """Return those of pip's configuration, which uv does not read."""
    done = subprocess.run(
        [sys.executable, "-P", "-m", "pip", "config", "get", "global.find-links"],
        capture_output=True,
        text=True,
        check=False,
    )
    words = (os.environ.get("PIP_FIND_LINKS", "") + " " + (done.stdout if done.returncode == 0 else "")).split()
    return list(dict.fromkeys(words))
