"""The box slider, in a software environment with MuJoCo."""

from __future__ import annotations

import json
import math
from itertools import pairwise
from typing import Any

import pytest

from hpcrl.catalogue.environments import OWN_ENVIRONMENTS
from hpcrl.errors import UsageError
from hpcrl.formats.worker import worker_zip
from hpcrl.rl.envs.box_slider import BoxSlider, judged, wheel_velocities
from tests.builders import built_environment
from tests.rl.test_frameworks import run_program

pytestmark = pytest.mark.slow


def said(tmp_path_factory: pytest.TempPathFactory, *arguments: str, framework: str = "numpy", **variables: str) -> Any:
    worker = tmp_path_factory.mktemp("worker") / "worker.zip"
    worker.write_bytes(worker_zip())
    out = run_program(built_environment(framework), worker, "tests.rl.box_slider_program", *arguments, **variables)
    return json.loads(out.splitlines()[-1])


@pytest.fixture(scope="module", params=[name for name in OWN_ENVIRONMENTS if name.startswith("BoxSlider")])
def facts(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return {"name": request.param, **said(tmp_path_factory, request.param, MUJOCO_GL="")}


def test_its_spaces_are_those_that_the_catalogue_says(facts: dict[str, Any]) -> None:
    described = OWN_ENVIRONMENTS[facts["name"]]
    assert facts["space"] == [list(described.shape), "uint8", described.actions] == [[*described.shape], "uint8", 25]
    assert facts["warnings"] == []


def test_the_camera_sees_the_car_its_front_the_box_and_the_goal(facts: dict[str, Any]) -> None:
    pixels = facts["space"][0][0] ** 2
    areas = {"car": 0.26 * 0.16, "front": 0.04 * 0.26, "box": 0.16**2, "goal": math.pi * 0.2**2}
    for what, area in areas.items():
        # The camera sees 2.2 m x 2.2 m of the floor. The front is only one or two pixels thick at 64 x 64.
        expected = area / 2.2**2 * pixels
        assert expected / 2 < facts["colours"][what] < 2 * expected, what
    assert facts["moved"] > 0.01 * pixels


def test_the_car_drives_and_turns_as_its_wheels_do(facts: dict[str, Any]) -> None:
    """At 3 rad/s, wheels of 0.08 m drive 0.06 m in the 0.25 s of a step; the axle is 0.22 m long."""
    straight, left, right, rest = (
        facts["runs"][each]["seen"] for each in ("straight", "turns left", "turns right", "rests")
    )
    steps = [after["car"][1] - before["car"][1] for before, after in pairwise(straight[1:5])]
    assert steps == pytest.approx([0.06] * 3, rel=0.05)
    assert all(abs(each["car"][0] - 0.3) < 0.01 for each in straight)
    turned = 2 * 0.08 * 0.25 / 0.22
    assert left[3]["heading"] - left[2]["heading"] == pytest.approx(turned, rel=0.1)
    assert right[3]["heading"] - right[2]["heading"] == pytest.approx(-turned, rel=0.1)
    assert math.dist(left[5]["car"], left[0]["car"]) < 0.02
    assert math.dist(rest[-1]["car"] + rest[-1]["box"], rest[0]["car"] + rest[0]["box"]) < 0.01


def test_a_step_costs_the_distance_of_the_box_until_it_is_there(facts: dict[str, Any]) -> None:
    run = facts["runs"]["pushes"]
    assert facts["start"] == run["seen"][0]
    assert facts["start"]["box"][1] > facts["start"]["car"][1]  # ahead of the car
    distances = [math.hypot(*each["box"]) for each in run["seen"]]
    assert run["rewards"][:-1] == [-each for each in distances[1:-1]]
    assert run["rewards"][-1] == 100
    assert distances[-1] < 0.2 <= min(distances[:-1])


@pytest.mark.parametrize(("which", "what"), [("straight", "box"), ("back", "car")])
def test_who_leaves_the_field_fails(facts: dict[str, Any], which: str, what: str) -> None:
    run = facts["runs"][which]
    inside = [abs(each[what][0]) <= 1 and -1.8 <= each[what][1] <= 0 for each in run["seen"]]
    assert inside == [True] * (len(inside) - 1) + [False]
    assert run["rewards"][-1] == -100
    assert all(-2.1 < each < 0 for each in run["rewards"][:-1])


def test_the_80th_step_is_a_failure(facts: dict[str, Any]) -> None:
    rewards = facts["runs"]["rests"]["rewards"]
    assert len(rewards) == 80
    assert rewards[-1] == -100
    assert rewards[:-1] == pytest.approx([-math.hypot(0.3, 1)] * 79, rel=1e-3)


def test_an_episode_is_the_same_again_and_its_frames_are_its_observations(facts: dict[str, Any]) -> None:
    assert facts["same again"]
    assert facts["any seed"]  # every episode starts in the same state
    assert facts["rendered"]


def test_without_a_gl_library_the_user_is_told_what_to_install(tmp_path_factory: pytest.TempPathFactory) -> None:
    text = said(tmp_path_factory, MUJOCO_GL="", DISPLAY="")
    assert text == (
        "MuJoCo cannot draw images here: neither libnone-1.so nor libnone-2.so can be loaded: install a GL library (Debian: "
        "libegl1, libgl1 and libgl1-mesa-dri, or libosmesa6 with MUJOCO_GL=osmesa; conda: mesalib)"
    )


def test_a_gl_library_that_fails_is_named(tmp_path_factory: pytest.TempPathFactory) -> None:
    text = said(tmp_path_factory, MUJOCO_GL="glfw", DISPLAY=":77")
    assert text.startswith("MuJoCo cannot draw images here: MUJOCO_GL is glfw, and that fails (")
    assert "install a GL library" in text
    text = said(tmp_path_factory, MUJOCO_GL="glfw", DISPLAY="")
    assert text == (
        "MuJoCo cannot draw images here: MUJOCO_GL is glfw, which needs a display, and DISPLAY is not set: unset it, or set it to egl "
        "or osmesa"
    )


def test_without_mujoco_the_user_is_told_where_it_is(tmp_path_factory: pytest.TempPathFactory) -> None:
    text = said(tmp_path_factory, framework="mxnet")
    assert text.startswith("the box slider needs the package mujoco, which is not installed here: choose")


@pytest.mark.parametrize(
    ("car", "box", "taken", "expected"),
    [
        ((0.0, -0.5), (0.0, -0.199), 1, (100.0, True)),
        ((0.0, -0.5), (0.0, -0.2), 1, (-0.2, False)),
        ((0.0, -0.5), (0.1, 0.1), 1, (100.0, True)),  # the goal comes before the border that runs through it
        ((0.0, -0.5), (0.3, 0.001), 1, (-100.0, True)),
        ((0.0, -0.5), (0.3, 0.0), 1, (-0.3, False)),
        ((0.0, -0.5), (0.0, -0.1), 80, (100.0, True)),
        ((0.0, -0.5), (0.0, -0.4), 79, (-0.4, False)),
        ((0.0, -0.5), (0.0, -0.4), 80, (-100.0, True)),
        ((1.001, -0.5), (0.0, -0.4), 1, (-100.0, True)),
        ((0.0, -0.5), (-1.001, -0.4), 1, (-100.0, True)),
        ((0.0, -1.801), (0.0, -0.4), 1, (-100.0, True)),
        ((-1.0, -1.8), (0.0, -0.4), 1, (-0.4, False)),
    ],
)
def test_rewards_at_the_borders(
    car: tuple[float, float], box: tuple[float, float], taken: int, expected: tuple[float, bool]
) -> None:
    assert judged(car, box, taken) == expected


def test_all_25_pairs_of_velocities_are_actions() -> None:
    pairs = [wheel_velocities(action) for action in range(25)]
    assert pairs == [(-1 + action // 5, -1 + action % 5) for action in range(25)]


def test_another_size_is_refused() -> None:
    with pytest.raises(UsageError, match="size: expected one of 128, 64, got 96"):
        BoxSlider(96)
