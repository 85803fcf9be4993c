"""Directories and pages of wheels that an index lacks."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence


def find_links_options(links: Sequence[str]) -> list[str]:
    """Return the options of pip and uv that name them."""
    return [word for link in links for word in ("--find-links", link)]


def configured_links() -> list[str]:
    """Return those that pip is configured with; uv does not read pip's configuration."""
    done = subprocess.run(
        [sys.executable, "-P", "-m", "pip", "config", "get", "global.find-links"],
        capture_output=True,
        text=True,
        check=False,
    )
    words = (os.environ.get("PIP_FIND_LINKS", "") + " " + (done.stdout if done.returncode == 0 else "")).split()
    return list(dict.fromkeys(words))
