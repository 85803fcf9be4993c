"""The box slider: a ground vehicle pushes a box to the origin, and sees the field from above.

Its source is the paper of the study `mpi-dqn`, section IV, there a scene of V-REP: "an Unmanned Ground Vehicle (UGV) that has to move a box to a
given position. The information that the controller gets is the image from a camera that is placed over the robot". The size of the
image, actions, rewards, ends of episodes, and the numbers of simulation steps are those of its published code. The scene is not
published. Masses, sizes, friction, starting places, the place of the camera and the length of a simulation step are ours.
"""

from __future__ import annotations

import math
from importlib.util import find_spec
from typing import Any, ClassVar

import gymnasium
import numpy as np
from numpy.typing import NDArray

from hpcrl.errors import UsageError
from hpcrl.rl.envs.make import register_own
from hpcrl.rl.envs.offscreen import cannot_draw, choose_gl

SIZES = (128, 64)  # pixels of an image's side
WHEEL_VELOCITIES = (-1.0, 0.0, 1.0, 2.0, 3.0)  # rad/s
STEPS_OF_SIMULATION, STEPS_AT_RESET = 20, 2
LONGEST = 80  # steps of an episode
GOAL_DISTANCE, GOAL_REWARD, FAILURE_REWARD = 0.2, 100.0, -100.0
FIELD = ((-1.0, 1.0), (-1.8, 0.0))  # metres in x and y

# Metres, kilograms, seconds. The car's x axis is its heading, at the start the y axis of the field. The car stands on two wheels,
# which grip the floor, and on two smooth castors. The box slides. It starts straight ahead of the car, but 0.3 m beside the
# origin, so that driving straight ahead misses the goal.
MODEL = """
<mujoco model="box slider">
  <option timestep="0.0125" integrator="implicitfast" cone="elliptic" impratio="10"/>
  <visual>
    <global offwidth="128" offheight="128"/>
    <quality offsamples="0" shadowsize="0"/>
    <headlight ambient="0.5 0.5 0.5" diffuse="0.5 0.5 0.5" specular="0 0 0"/>
  </visual>
  <worldbody>
    <camera name="above" pos="0 -0.8 4" xyaxes="1 0 0 0 1 0" fovy="31"/>
    <geom type="plane" size="4 4 0.1" friction="0.4 0.005 0.0001" rgba="0.35 0.35 0.35 1"/>
    <geom type="box" pos="0 -0.9 0.0005" size="1 0.9 0.0005" contype="0" conaffinity="0" rgba="0.85 0.85 0.85 1"/>
    <geom type="cylinder" pos="0 0 0.001" size="0.2 0.001" contype="0" conaffinity="0" rgba="0.1 0.7 0.2 1"/>
    <body name="car" pos="0.3 -1.5 0.08" euler="0 0 90">
      <freejoint/>
      <geom type="box" size="0.13 0.08 0.02" mass="1" rgba="0.1 0.2 0.9 1"/>
      <geom type="box" pos="0.15 0 0" size="0.02 0.13 0.05" mass="0.1" rgba="1 0.8 0 1"/>
      <geom type="sphere" pos="0.1 0 -0.06" size="0.02" mass="0.05" priority="1" friction="0.01 0.001 0.0001"/>
      <geom type="sphere" pos="-0.1 0 -0.06" size="0.02" mass="0.05" priority="1" friction="0.01 0.001 0.0001"/>
      <body name="left wheel" pos="0 0.11 0">
        <joint name="left" type="hinge" axis="0 1 0"/>
        <geom type="ellipsoid" size="0.08 0.02 0.08" mass="0.1" friction="1.5 0.005 0.0001" rgba="0.05 0.05 0.05 1"/>
      </body>
      <body name="right wheel" pos="0 -0.11 0">
        <joint name="right" type="hinge" axis="0 1 0"/>
        <geom type="ellipsoid" size="0.08 0.02 0.08" mass="0.1" friction="1.5 0.005 0.0001" rgba="0.05 0.05 0.05 1"/>
      </body>
    </body>
    <body name="box" pos="0.3 -1 0.08">
      <freejoint/>
      <geom type="box" size="0.08 0.08 0.08" mass="0.3" friction="0.4 0.005 0.0001" rgba="0.85 0.1 0.1 1"/>
    </body>
  </worldbody>
  <actuator>
    <velocity joint="left" kv="0.3" forcerange="-1 1"/>
    <velocity joint="right" kv="0.3" forcerange="-1 1"/>
  </actuator>
</mujoco>
"""


class BoxSlider(gymnasium.Env):
    """Push the box to the origin within 80 steps.

    - Observation: the camera's image, (size, size, 3) uint8. The camera is fixed above the field and sees all of it.
    - Action a, of 25: the left wheel turns with -1 + a // 5 rad/s, the right one with -1 + a % 5.
    - A step is 20 steps of simulation, 0.25 s. A reset has 2. Every episode starts in the same state, whatever the seed.
    - Reward: minus the distance of the box's centre from the origin, in x and y. If it is below 0.2: +100, and the episode ends.
    - The car's or the box's centre outside of x in [-1, 1], y in [-1.8, 0]: -100, and the episode ends. The origin lies on the border
      of that field. So the goal is checked first, unlike in the published code: a box within 0.2 of the origin is there, though its y
      may be above 0.
    - The 80th step counts as a failure (the 81st in the published code): -100, and `terminated`. So the value of that state is not
      bootstrapped, although the observation does not show the time.

    Raises:
        UsageError: mujoco is not installed, or nothing here can draw.
    """

    metadata: ClassVar[dict[str, Any]] = {"render_modes": ["rgb_array"], "render_fps": 4}

    def __init__(self, size: int = 128, render_mode: str | None = None) -> None:
        if size not in SIZES:
            raise UsageError(f"box slider: size: expected one of {', '.join(map(str, SIZES))}, got {size!r}")
        if find_spec("mujoco") is None:
            raise UsageError(
                "the box slider needs the package mujoco, which is not installed here: choose the software environment of numpy, "
                "torch, tensorflow or jax, or install mujoco"
            )
        gl = choose_gl()
        try:
            import mujoco

            self._model = mujoco.MjModel.from_xml_string(MODEL)
            self._renderer = mujoco.Renderer(self._model, size, size, max_geom=100)
        except Exception as error:  # each GL library fails in its own way
            raise cannot_draw(f"MUJOCO_GL is {gl}, and that fails ({' '.join(str(error).split())})") from None
        self._renderer.scene.flags[mujoco.mjtRndFlag.mjRND_SHADOW] = False
        self.render_mode = render_mode
        self.observation_space = gymnasium.spaces.Box(0, 255, (size, size, 3), np.uint8)
        self.action_space = gymnasium.spaces.Discrete(len(WHEEL_VELOCITIES) ** 2)
        self._data = mujoco.MjData(self._model)
        self._simulate, self._restart = mujoco.mj_step, mujoco.mj_resetData
        self._car, self._box = self._data.body("car"), self._data.body("box")
        self._taken = 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.uint8], dict[str, Any]]:
        super().reset(seed=seed)
        self._restart(self._model, self._data)
        self._taken = 0
        self._simulate(self._model, self._data, STEPS_AT_RESET)
        return self._image(), self._places()

    def step(self, action: int) -> tuple[NDArray[np.uint8], float, bool, bool, dict[str, Any]]:
        self._data.ctrl[:] = wheel_velocities(int(action))
        self._simulate(self._model, self._data, STEPS_OF_SIMULATION)
        self._taken += 1
        places = self._places()
        reward, ended = judged(places["car"], places["box"], self._taken)
        return self._image(), reward, ended, False, places

    def render(self) -> NDArray[np.uint8] | None:
        return self._image() if self.render_mode == "rgb_array" else None

    def close(self) -> None:
        self._renderer.close()

    def _places(self) -> dict[str, Any]:
        """Return where car and box are, and the car's heading: (x, y) in metres and radians from the x axis."""
        forward = self._car.xmat[[0, 3]]
        return {
            "car": (float(self._car.xpos[0]), float(self._car.xpos[1])),
            "box": (float(self._box.xpos[0]), float(self._box.xpos[1])),
            "heading": math.atan2(forward[1], forward[0]),
        }

    def _image(self) -> NDArray[np.uint8]:
        self._renderer.update_scene(self._data, "above")
        image: NDArray[np.uint8] = self._renderer.render()
        return image


def wheel_velocities(action: int) -> tuple[float, float]:
    """Return the velocities of the left and the right wheel, in rad/s."""
    left, right = divmod(action, len(WHEEL_VELOCITIES))
    return WHEEL_VELOCITIES[left], WHEEL_VELOCITIES[right]


def judged(car: tuple[float, float], box: tuple[float, float], taken: int) -> tuple[float, bool]:
    """Return the reward of a step, the `taken`-th of its episode, and whether the episode ends."""
    distance = math.hypot(*box)
    if distance < GOAL_DISTANCE:
        return GOAL_REWARD, True
    inside = all(
        low <= coordinate <= high for place in (car, box) for coordinate, (low, high) in zip(place, FIELD, strict=True)
    )
    if not inside or taken >= LONGEST:
        return FAILURE_REWARD, True
    return -distance, False


register_own()
