"""Drawings of Gymnasium's classic environments where pygame is not installed, which draws Gymnasium's own.

Each takes the unwrapped environment and returns an image (height, width, 3) uint8. Needs Pillow.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

Image = NDArray[np.uint8]
_WIDTH, _HEIGHT = 600, 400
_PAPER, _INK, _WOOD, _STEEL = (255, 255, 255), (30, 30, 30), (200, 150, 100), (120, 130, 200)


def _blank() -> tuple[Any, Any]:
    from PIL import Image, ImageDraw

    image = Image.new("RGB", (_WIDTH, _HEIGHT), _PAPER)
    return image, ImageDraw.Draw(image)


def cart_pole(environment: Any) -> Image:
    """Draw the cart on its track, and the pole: the state is position (m), velocity, angle (rad, 0 upright), angular velocity."""
    image, draw = _blank()
    scale = _WIDTH / (2 * environment.x_threshold)
    place, _, angle, _ = (float(value) for value in environment.state)
    x, y = _WIDTH / 2 + place * scale, 300.0
    length = 2 * environment.length * scale  # `length` is half the pole's
    tip = x + length * math.sin(angle), y - length * math.cos(angle)
    draw.line((0, y, _WIDTH, y), _INK, 2)
    draw.rectangle((x - 25, y - 15, x + 25, y + 15), _INK)
    draw.line((x, y, *tip), _WOOD, 10)
    draw.ellipse((x - 5, y - 5, x + 5, y + 5), _STEEL)
    return np.asarray(image)


def mountain_car(environment: Any) -> Image:
    """Draw the car on its hills, whose height is sin(3 x), and the flag at the goal: the state is position and velocity."""
    image, draw = _blank()
    low, high = float(environment.min_position), float(environment.max_position)

    def spot(place: float) -> tuple[float, float]:
        return (place - low) / (high - low) * _WIDTH, 330 - 120 * (math.sin(3 * place) + 1)

    draw.line([spot(place) for place in np.linspace(low, high, 120).tolist()], _INK, 3)
    x, y = spot(float(environment.goal_position))
    draw.line((x, y, x, y - 50), _INK, 2)
    draw.polygon((x, y - 50, x + 25, y - 42, x, y - 34), (200, 60, 50))
    x, y = spot(float(environment.state[0]))
    draw.ellipse((x - 14, y - 28, x + 14, y), _STEEL)
    return np.asarray(image)


# By the name of the environment.
DRAWINGS: dict[str, Callable[[Any], Image]] = {"CartPole-v1": cart_pole, "MountainCar-v0": mountain_car}
