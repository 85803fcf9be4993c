"""Gymnasium's own check of an environment.

``python -m hpcrl.rl.envs.checking ID OPTIONS`` prints what it finds wrong in one line, and else the environment's spaces and whether it can be
there in JAX.
"""

from __future__ import annotations

import importlib
import json
import sys
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hpcrl.catalogue.actions import FAULT, SPACES, spaces_of
from hpcrl.catalogue.registry import frameworks
from hpcrl.catalogue.training import COMPILED_IN
from hpcrl.errors import UsageError
from hpcrl.rl.envs.closing import close_all
from hpcrl.rl.envs.make import NotInstalledHere, gymnasium_environment

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


def may_be_in_jax(environment: Any) -> bool:
    """Tell whether an environment may be there in JAX: one of hpcrl's, or one whose module has a `jax_world`.

    The module may define it only where JAX is installed, so its text counts.
    """
    if environment.spec.id in frameworks()[COMPILED_IN].environments:
        return True
    entry = getattr(environment.spec, "entry_point", None)
    if not isinstance(entry, str):
        return False
    module = importlib.import_module(entry.partition(":")[0])
    return hasattr(module, "jax_world") or "jax_world" in Path(str(module.__file__)).read_text(errors="replace")


def _answer(name: str, options: Mapping[str, Any]) -> str:
    try:
        if wrong := check(name, options):
            return FAULT + wrong
        environment = gymnasium_environment(name, None, options)
    except (NotInstalledHere, ImportError, MemoryError):  # not what was asked: its cell says it
        return ""
    except UsageError as error:
        return FAULT + str(error)
    except Exception as error:  # whatever the environment's own code raises
        said = " ".join(str(error).split()) or "no message"
        return f"{FAULT}{name} cannot be made: {type(error).__name__}: {said[:_LONGEST]}"
    return SPACES + json.dumps([*spaces_of(environment), may_be_in_jax(environment)])


if __name__ == "__main__":
    print(_answer(sys.argv[1], json.loads(sys.argv[2])))
