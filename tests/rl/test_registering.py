"""hpcrl's environments in Gymnasium's registry, in a process that has not asked for one before."""

from __future__ import annotations

import subprocess
import sys

import pytest


def said(program: str) -> list[str]:
    """Return the lines that a program prints. A warning, as of an environment that is registered again, ends it."""
    command = [sys.executable, "-W", "error", "-c", program]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()


def test_gymnasium_makes_doors_by_its_module() -> None:
    assert said("""
import gymnasium
made = gymnasium.make("hpcrl.rl.envs.doors:Doors-v0", size=8)
print(made.unwrapped.size, made.spec.max_episode_steps)
from hpcrl.rl.envs.make import gymnasium_environment
print(gymnasium_environment("Doors-v0", None).unwrapped.size)
""") == ["8 38", "15"]


@pytest.mark.parametrize("name", ["BoxSlider-v0", "BoxSlider64-v0"])
def test_the_box_slider_s_module_registers_it(name: str) -> None:
    entry = "hpcrl.rl.envs.box_slider:BoxSlider"
    program = f"""
import gymnasium, importlib
print("{name}" in gymnasium.registry)
importlib.import_module("{entry}".partition(":")[0])
print(gymnasium.spec("{name}").entry_point)
"""
    assert said(program) == ["False", entry]
