"""Environments by their names."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from hpcrl.catalogue.environments import OWN_ENVIRONMENTS
from hpcrl.errors import UsageError
from hpcrl.rl.envs.offscreen import fault_of_name, is_mujoco

# Options of Gymnasium's environments with MuJoCo.
_CAMERA = {"camera_id", "camera_name", "default_camera_config"}


class NotInstalledHere(UsageError):
    """An environment needs a package that is not installed here."""


def register_own() -> None:
    """Tell Gymnasium of hpcrl's own environments, whose modules call this at their import: ``gymnasium.make("hpcrl.rl.envs.doors:Doors-v0")``."""
    import gymnasium

    for own, described in OWN_ENVIRONMENTS.items():
        if own not in gymnasium.registry:
            gymnasium.register(own, described.entry, kwargs=described.arguments, max_episode_steps=described.limit)


def gymnasium_environment(
    name: str, max_episode_steps: int | None, options: Mapping[str, Any] | None = None, drawn: bool = False
) -> Any:
    """Make a Gymnasium environment, or one of hpcrl's own; None keeps the environment's own limit of steps.

    `options` are the arguments of a Gymnasium environment, or what the catalogue says of hpcrl's own. A `drawn` one renders images.

    Raises:
        UsageError: there is none of this name, it has no such option, or it cannot be made here.
    """
    import gymnasium

    register_own()
    arguments = dict(options or {})
    if name in OWN_ENVIRONMENTS:
        described = OWN_ENVIRONMENTS[name].with_options(name, arguments)
        arguments = dict(described.arguments)
        if described.more_steps:
            max_episode_steps = (max_episode_steps or described.limit) + described.more_steps
    if drawn:
        arguments["render_mode"] = "rgb_array"
        if is_mujoco(name) and not set(arguments) & _CAMERA:
            # The camera that follows the robot, of models that have one. Gymnasium 1.4's own choice stays where the robot starts.
            arguments["camera_name"] = "track"
    if wrong := fault_of_name(name, os.environ):
        raise UsageError(f"environment {name}: {wrong}")
    try:
        return gymnasium.make(name, max_episode_steps=max_episode_steps, **arguments)
    except gymnasium.error.DependencyNotInstalled as error:
        raise NotInstalledHere(f"environment {name}: {' '.join(str(error).split())}") from None
    except gymnasium.error.Error as error:
        raise UsageError(f"environment {name}: {' '.join(str(error).split())}") from None
    except TypeError as error:
        if not options:
            raise
        raise UsageError(f"environment {name}: options {', '.join(options)}: {' '.join(str(error).split())}") from None
