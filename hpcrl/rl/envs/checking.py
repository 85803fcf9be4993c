"""Gymnasium's own check of an environment.

``python -m hpcrl.rl.envs.checking ID OPTIONS`` prints what it finds wrong in one line, and else the environment's spaces.
"""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from hpcrl.catalogue.actions import SPACES, spaces_of
from hpcrl.errors import UsageError
from hpcrl.rl.envs.closing import close_all
from hpcrl.rl.envs.make import gymnasium_environment

_LONGEST = 300


def check(name: str, options: Mapping[str, Any] | None = None) -> str | None:
    """Say what Gymnasium's check_env finds wrong with an environment; None if it finds nothing.

    Raises:
        UsageError: the environment cannot be made here.
    """
    from gymnasium.utils.env_checker import check_env

    environment = gymnasium_environment(name, None, options).unwrapped
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            check_env(environment, skip_render_check=True)
    except Exception as error:  # whatever the environment's own code raises
        if isinstance(error, MemoryError) or "out of memory" in str(error).lower():
            raise  # this says nothing of the environment's rules
        said = " ".join(str(error).split()) or "no message"
        return f"{name} fails Gymnasium's check_env: {type(error).__name__}: {said[:_LONGEST]}"
    finally:
        close_all([environment])
    return None


if __name__ == "__main__":
    name, options = sys.argv[1], json.loads(sys.argv[2])
    with suppress(UsageError, ImportError):  # not what was asked: its cell says it
        print(check(name, options) or SPACES + json.dumps(spaces_of(gymnasium_environment(name, None, options))))
