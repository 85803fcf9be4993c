"""Run in a software environment with MuJoCo: what the box slider shows, rewards and ends with, as JSON."""

from __future__ import annotations

import json
import math
import sys
import warnings
from collections.abc import Callable
from typing import Any

from hpcrl.errors import UsageError
from hpcrl.rl.envs import offscreen
from hpcrl.rl.envs.make import gymnasium_environment

Policy = Callable[[dict[str, Any]], int]


def action(left: int, right: int) -> int:
    """Return the action with these velocities of the wheels."""
    return 5 * (left + 1) + (right + 1)


def pushes_to_the_origin(places: dict[str, Any]) -> int:
    """Steer back to the line from the origin through the box, behind the box, and so push it along that line."""
    (x, y), (box_x, box_y) = places["car"], places["box"]
    wanted = math.atan2(-box_y, -box_x)
    beside = (y - box_y) * math.cos(wanted) - (x - box_x) * math.sin(wanted)
    wrong = places["heading"] - (wanted - max(-0.8, min(0.8, 2 * beside)))
    return action(3, 3) if abs(wrong) < 0.1 else action(0, 3) if wrong < 0 else action(3, 0)


def episode(environment: Any, policy: Policy) -> dict[str, Any]:
    """Return the rewards of an episode, where car and box were after each step, and its last image."""
    image, places = environment.reset(seed=1)
    rewards, seen, ended = [], [places], False
    while not ended:
        image, reward, ended, truncated, places = environment.step(policy(places))
        assert ended or not truncated  # the limit of steps is an end, too
        rewards.append(reward)
        seen.append(places)
    return {"rewards": rewards, "seen": seen, "image": image}


def count_of(image: Any, what: str) -> int:
    """Count the pixels of one colour."""
    red, green, blue = (image[..., each].astype(int) for each in range(3))
    return int(
        {
            "car": (blue > 150) & (red < 100) & (green < 100),
            "front": (red > 120) & (green > 80) & (blue < 60),
            "box": (red > 150) & (green < 80) & (blue < 80),
            "goal": (green > 120) & (red < 80) & (blue < 100),
        }[what].sum()
    )


def facts_of(name: str) -> dict[str, Any]:
    from gymnasium.utils.env_checker import check_env

    environment = gymnasium_environment(name, None)
    first, places = environment.reset(seed=1)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        check_env(environment.unwrapped)
    policies: dict[str, Policy] = {
        "pushes": pushes_to_the_origin,
        "straight": lambda places: action(3, 3),
        "back": lambda places: action(-1, -1),
        "rests": lambda places: action(0, 0),
        "turns left": lambda places: action(-1, 1),
        "turns right": lambda places: action(1, -1),
    }
    runs = {which: episode(environment, policy) for which, policy in policies.items()}
    again = episode(environment, pushes_to_the_origin)
    facts = {
        "space": [list(first.shape), str(first.dtype), int(environment.action_space.n)],
        "start": places,
        "warnings": [str(each.message) for each in told],
        "colours": {what: count_of(first, what) for what in ("car", "front", "box", "goal")},
        "moved": int((first != runs["pushes"]["image"]).any(axis=-1).sum()),
        "same again": again["rewards"] == runs["pushes"]["rewards"] and bool((again["image"] == runs["pushes"]["image"]).all()),
        "runs": {which: {"rewards": run["rewards"], "seen": run["seen"]} for which, run in runs.items()},
    }  # fmt: skip
    from hpcrl.rl.envs.box_slider import BoxSlider

    shown = BoxSlider(first.shape[0], render_mode="rgb_array")
    image, _ = shown.reset(seed=2)
    facts["rendered"] = bool((shown.render() == image).all())
    facts["any seed"] = bool((image == first).all())
    for each in (shown, environment):
        each.close()
    return facts


def without_a_library() -> str:
    """Return what the user is told on a machine without EGL and OSMesa."""
    offscreen._LIBRARIES.update(egl="libnone-1.so", osmesa="libnone-2.so")
    try:
        gymnasium_environment("BoxSlider-v0", None)
    except UsageError as error:
        return str(error)
    return "it was made"


if __name__ == "__main__":
    print(json.dumps(facts_of(sys.argv[1]) if len(sys.argv) > 1 else without_a_library()))
