"""`hpcrl play`, and the agents that a cell leaves in its plan."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from PIL import Image

import hpcrl as package
from hpcrl import api
from hpcrl.catalogue.algorithms.dqn import Settings
from hpcrl.catalogue.algorithms.td3 import Settings as Td3Settings
from hpcrl.environments import playing
from hpcrl.environments.build import MARKER
from hpcrl.errors import UsageError
from hpcrl.formats.plan import agent_file, read_plan
from hpcrl.formats.worker import worker_zip
from hpcrl.rl.agents import Agent
from hpcrl.rl.evaluation import start_seeds
from hpcrl.rl.interfaces import Algorithm, Space
from tests.builders import built_environment, cells_of, command_study, dqn_study, planned, run_task
from tests.conftest import Shown
from tests.rl.builders import first_weights, made_of
from tests.run.test_cell import JOB, only_record

Call = Callable[..., Shown]


@pytest.fixture(autouse=True)
def _no_other_environments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An agent plays in this Python, unless a test makes the software environment of its cell."""
    monkeypatch.setenv("HPCRL_ENVIRONMENTS", str(tmp_path / "environments"))


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A plan whose cell has been run."""
    plan = planned(tmp_path_factory.mktemp("trained") / "p", dqn_study())
    done = run_task(plan, JOB)
    assert done.returncode == 0, done.stderr
    return plan


def only_cell(plan: Path) -> str:
    (cell,) = cells_of(plan)
    return str(cell["id"])


def test_a_cell_leaves_its_agents_after_its_last_measurement(trained: Path) -> None:
    cell, data = only_cell(trained), only_record(trained)
    assert data.footer is not None
    files = {which: agent_file(trained, cell, which) for which in ("best", "last")}
    assert sorted((trained / "agents").iterdir()) == sorted(files.values())
    (record,) = (trained / "records").iterdir()
    evaluations = list(zip(data.column("evaluations", "step"), data.column("evaluations", "value"), strict=True))
    for which, file in files.items():
        assert file.stat().st_mtime_ns >= record.stat().st_mtime_ns
        agent = package.load_agent(trained, cell[:6], which)
        assert (agent.step, agent.score) in evaluations
        assert agent.score == data.footer["best_score" if which == "best" else "final_score"]
        assert agent.origin == {
            "study": "short", "plan": data.header["plan"], "hpcrl": read_plan(trained).hpcrl, "cell": cell, "which": which,
            "attempt": data.header["attempt"], "framework": "numpy", "execution": "eager", "seed": 1,
        }  # fmt: skip
        assert agent.act(np.zeros(4)) in (0, 1)


def test_a_study_may_keep_no_agents(tmp_path: Path, hpcrl: Call) -> None:
    plan = planned(tmp_path / "p", dqn_study(agents="none"))
    assert run_task(plan, JOB).returncode == 0
    assert not (plan / "agents").exists()
    shown = hpcrl("play", plan, "--cell", only_cell(plan))
    assert shown.code == 2
    assert "has no agent: its study says `agents: none`: plan without that, and run the cell again" in shown.err


def test_a_plan_of_an_older_hpcrl_keeps_agents_and_its_cells_keep_their_ids(tmp_path: Path) -> None:
    plan, other = planned(tmp_path / "p", dqn_study()), planned(tmp_path / "q", dqn_study(agents="framework"))
    assert only_cell(plan) == only_cell(other)
    manifest = json.loads((plan / "plan.json").read_text())
    del manifest["study"]["agents"]
    (plan / "plan.json").write_text(json.dumps(manifest))
    assert (read_plan(plan).study.agents, read_plan(other).study.agents) == ("numpy", "framework")


@pytest.mark.parametrize("obstacle", ["file", "link"])
def test_an_agent_that_cannot_be_saved_does_not_harm_the_cell(tmp_path: Path, obstacle: str) -> None:
    plan = planned(tmp_path / "p", dqn_study())
    if obstacle == "file":
        (plan / "agents").write_text("in the way")
    else:
        (tmp_path / "elsewhere").mkdir()
        (plan / "agents").symlink_to(tmp_path / "elsewhere")
    done = run_task(plan, JOB)
    assert done.returncode == 0
    assert "hpcrl: the best agent was not saved: " in done.stderr
    data = only_record(plan)
    assert data.footer is not None and data.footer["outcome"] == "completed"
    assert obstacle == "file" or not list((tmp_path / "elsewhere").iterdir())


def test_playing_gives_the_same_returns_for_the_same_seed(trained: Path, hpcrl: Call) -> None:
    cell = only_cell(trained)
    shown = hpcrl("play", trained, "--cell", cell[:8], "--episodes", 3, "--json")
    assert shown.code == 0, shown.err
    found = json.loads(shown.out)
    environment, agent = gymnasium.make("CartPole-v1"), package.load_agent(trained, cell)
    expected = []
    for seed in start_seeds(0, 7, 3):
        observation, over, value = environment.reset(seed=seed)[0], False, 0.0
        while not over:
            observation, reward, terminated, truncated, _ = environment.step(agent.act(observation))
            value, over = value + float(reward), terminated or truncated
        expected.append(value)
    assert found == {"returns": expected, "lengths": [int(value) for value in expected]}
    assert json.loads(hpcrl("play", trained, "--cell", cell, "--episodes", 3, "--json").out) == found
    assert api.play(trained, cell, episodes=20).returns != api.play(trained, cell, episodes=20, seed=1).returns
    last = api.play(agent_file(trained, cell, "last"), episodes=3)
    shown = hpcrl("play", trained, "--cell", cell, "--episodes", 3, "--json", "--last")
    assert json.loads(shown.out) == {"returns": last.returns, "lengths": last.lengths}
    table = hpcrl("play", trained, "--cell", cell, "--episodes", 1)
    assert table.out == f"episode\treturn\tsteps\n1\t{expected[0]:g}\t{expected[0]:g}\n"
    assert f"Mean return {expected[0]:g}, from {expected[0]:g} to {expected[0]:g}." in table.err


def images_of(path: Path) -> list[Any]:
    with Image.open(path) as video:
        found = []
        for number in range(getattr(video, "n_frames", 1)):
            video.seek(number)
            found.append((np.asarray(video.convert("RGB")), video.info["duration"]))
        return found


def saved(path: Path, environment: str, space: Space, **more: Any) -> Path:
    """Save an agent that was never trained."""
    algorithm = made_of("dqn", Settings(hidden=(8,)), space)
    Agent(algorithm, first_weights(algorithm)["online"], None, environment, **more).save(path)
    return path


def test_a_video_shows_the_episodes(trained: Path, tmp_path: Path, hpcrl: Call) -> None:
    shown = hpcrl("play", trained, "--cell", only_cell(trained), "--episodes", 2, "--video", tmp_path / "a.gif")
    assert shown.code == 0, shown.err
    steps = sum(int(line.split("\t")[2]) for line in shown.out.splitlines()[1:])
    seen = -(-(steps + 2) // 2)  # 50 images per second, of which every second one is kept; each episode has a last one
    assert f"Video of {seen} images: {tmp_path / 'a.gif'}" in shown.err
    images = images_of(tmp_path / "a.gif")
    assert images[0][0].shape == (213, 320, 3)
    # Images that are equal are one in a GIF, for a longer time.
    assert sum(duration for _, duration in images) == 40 * seen
    assert len(images) > seen / 2
    assert len({image.tobytes() for image, _ in images}) > seen / 2


def test_an_environment_of_hpcrl_draws_itself(tmp_path: Path) -> None:
    file = saved(
        tmp_path / "a.npz", "Doors-v0", Space(25, 5), options={"size": 5, "extra_step": True}, max_episode_steps=6
    )
    done = api.play(file, episodes=2, video=tmp_path / "a.gif")
    images = images_of(tmp_path / "a.gif")
    assert done.images == sum(done.lengths) + 2
    assert max(done.lengths) <= 7
    assert images[0][0].shape == (50, 50, 3)
    wall = images[0][0][25, ::10]
    assert wall.max(axis=1).tolist().count(255) == 5 - 3  # three doors in five cells


def test_a_long_video_is_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = saved(tmp_path / "a.npz", "Doors-v0", Space(225, 5))
    done = playing.play_anywhere(file, episodes=2, wanted=playing.VideoFile(tmp_path / "a.gif", side=30, seconds=1.5))
    assert (done.images, done.cut) == (6, True)
    assert images_of(tmp_path / "a.gif")[0][0].shape == (30, 30, 3)


class Undrawn(gymnasium.Env[Any, Any]):
    """Episodes of one step, without a drawing."""

    observation_space = gymnasium.spaces.Box(-1, 1, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return np.zeros(2, np.float32), {}

    def step(self, action: int) -> Any:
        return np.zeros(2, np.float32), 2.0, True, False, {}


def test_what_cannot_play_or_be_drawn_is_one_sentence(
    tmp_path: Path, trained: Path, hpcrl: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gymnasium.envs.registration, "registry", dict(gymnasium.registry))
    gymnasium.register("Undrawn-v0", "tests.cli.test_play:Undrawn", max_episode_steps=3)
    file, video = saved(tmp_path / "a.npz", "Undrawn-v0", Space(2, 2)), tmp_path / "a.gif"
    assert api.play(file, episodes=2).returns == [2.0, 2.0]
    assert hpcrl("play", shutil.copy(file, tmp_path / "without_a_suffix"), "--episodes", 1).code == 0
    cell = only_cell(trained)
    os.mkfifo(tmp_path / "pipe.npz")
    cases = [
        ([file, "--video", video], "environment Undrawn-v0: has no drawing: play it without a video"),
        ([saved(tmp_path / "b.npz", "Nowhere-v0", Space(2, 2))], "environment Nowhere-v0: "),
        ([saved(tmp_path / "c.npz", "Undrawn-v0", Space(3, 2))], "has observations of 2 values and 2 actions here, but"),
        ([saved(tmp_path / "d.npz", "absent_package:A-v0", Space(3, 2))], "No module named 'absent_package': install the package"),
        ([trained, "--cell", cell, "--video", tmp_path / "a.avi"], "a.avi: no such kind of video; there are: .gif, .mp4"),
        ([trained, "--cell", "zz"], "no cell of"),
        ([trained], "--cell is missing: give one of the cells that `hpcrl status"),
        ([tmp_path / "nowhere"], "nowhere: is not a plan directory (no plan.json)"),
        ([tmp_path / "nowhere.npz"], "nowhere.npz: cannot be read: No such file or directory"),
        ([tmp_path / "pipe.npz"], "pipe.npz: cannot be read: it is not a regular file"),
        ([tmp_path], "is not a plan directory (no plan.json)"),
        ([planned(tmp_path / "q", dqn_study()), "--cell", cell], "has no agent: it has not been run up to its first evaluation"),
    ]  # fmt: skip
    for words, said in cases:
        shown = hpcrl("play", *words)
        assert shown.code == 2, words
        assert said in shown.err and shown.err.count("\n") == 1, words
    assert not video.exists()
    plan = planned(tmp_path / "command", command_study(["true"]))
    shown = hpcrl("play", plan, "--cell", only_cell(plan))
    assert "has no agent: it runs a command, and hpcrl keeps agents of built-in training only" in shown.err


def test_an_mp4_needs_an_encoder(trained: Path, tmp_path: Path, hpcrl: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    """The encoder is a stand-in, which keeps what it is given."""
    words = [trained, "--cell", only_cell(trained), "--episodes", 1, "--video", tmp_path / "a.mp4"]
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    shown = hpcrl("play", *words)
    assert shown.code == 2
    assert "a.mp4: an MP4 needs ffmpeg, which is not installed here: install it, or name a .gif" in shown.err
    (tmp_path / "bin").mkdir()
    program = tmp_path / "bin/ffmpeg"
    program.write_text(
        f"#!{sys.executable}\nimport sys\nopen(sys.argv[-1], 'wb').write(repr(sys.argv[1:]).encode() + sys.stdin.buffer.read())\n"
    )
    program.chmod(0o755)
    shown = hpcrl("play", *words)
    assert shown.code == 0, shown.err
    content = (tmp_path / "a.mp4").read_bytes()
    images = int(shown.err.partition("Video of ")[2].partition(" ")[0])
    assert b"'-s', '320x213', '-r', '25'" in content
    assert len(content) > images * 320 * 213 * 3
    program.write_text("#!/bin/sh\necho broken >&2\nexit 3\n")
    shown = hpcrl("play", *words)
    assert shown.code == 1
    assert shown.err == f"hpcrl: {tmp_path / 'a.mp4'}: ffmpeg failed: broken\n"


def environment_of(plan: Path, root: Path, python: str) -> None:
    """Make the software environment of a plan's cells one with this Python."""
    (environment,) = read_plan(plan).environments
    (root / environment.key / "bin").mkdir(parents=True)
    (root / environment.key / "bin/python").write_text(f'#!/bin/sh\ntouch {root}/used\nexec "{python}" "$@"\n')
    (root / environment.key / "bin/python").chmod(0o755)
    (root / environment.key / MARKER).write_text("{}")


def test_what_this_python_lacks_the_environment_of_the_cell_may_have(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cell, expected = only_cell(trained), api.play(trained, only_cell(trained), episodes=2)

    def lacks(*arguments: Any) -> Any:
        raise UsageError("environment CartPole-v1: a package is missing")

    monkeypatch.setattr(playing, "play", lacks)
    with pytest.raises(UsageError, match=r"a package is missing$"):
        api.play(trained, cell, episodes=2)
    environment_of(trained, tmp_path / "environments", sys.executable)
    for agent in ([trained, cell], [agent_file(trained, cell, "best")]):
        assert api.play(*agent, episodes=2) == expected
        (tmp_path / "environments/used").unlink()
    done = api.play(trained, cell, episodes=1, seed=3, video=tmp_path / "a.gif")
    assert len(images_of(tmp_path / "a.gif")) > 3 and done.images > 3
    monkeypatch.chdir(tmp_path)
    shutil.copytree(trained, tmp_path / "copy")
    saved(agent_file(tmp_path / "copy", cell, "best"), "Nowhere-v0", Space(4, 2), origin={"cell": cell})
    with pytest.raises(Exception, match=r"a package is missing; and in /.*: environment Nowhere-v0"):
        api.play("copy", cell)


ROBOT = Space(4, 1, bounds=((-3.0, 3.0),))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("environment", "algorithm", "part", "most", "shape"),
    [
        ("BoxSlider64-v0", made_of("dqn", Settings(hidden=(8,)), Space(64 * 64 * 3, 25, channels=3)), "online", 80, (64, 64, 3)),
        ("InvertedPendulum-v5", made_of("td3", Td3Settings(hidden=(8,)), ROBOT), "actor", 1000, (320, 320, 3)),
    ],
)  # fmt: skip
def test_what_mujoco_draws_is_filmed_in_the_environment_of_its_cell(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    environment: str, algorithm: Algorithm, part: str, most: int, shape: tuple[int, int, int],
) -> None:  # fmt: skip
    training = {"algorithm": algorithm.name, "environment": environment, "hyperparameters": {"total_steps": 100}}
    plan = planned(tmp_path / "p", dqn_study(workload=training))
    environment_of(plan, tmp_path / "environments", str(built_environment("torch").path / "bin/python"))
    monkeypatch.delenv("MUJOCO_GL", raising=False)
    cell = only_cell(plan)
    agent = Agent(algorithm, first_weights(algorithm)[part], None, environment, origin={"cell": cell})
    agent.save(agent_file(plan, cell, "best"))
    done = api.play(plan, cell, episodes=1, video=tmp_path / "a.gif")
    images = images_of(tmp_path / "a.gif")
    assert 1 <= done.lengths[0] <= most and done.images == done.lengths[0] + 1
    assert images[0][0].shape == shape
    assert images[0][0].std() > 5
    assert os.environ.get("MUJOCO_GL") is None


RUNS_AWAY = """
import json
from hpcrl.rl.envs.make import gymnasium_environment
from hpcrl.rl.envs.offscreen import choose_gl
choose_gl()
seen = []
for options in ({}, {"camera_id": -1}):
    environment = gymnasium_environment("HalfCheetah-v5", None, options, drawn=True)
    environment.reset(seed=1)
    robot = environment.unwrapped
    for place in (0.0, 20.0):
        robot.set_state(robot.data.qpos * [0, *[1] * 8] + [place, *[0] * 8], robot.data.qvel)
        image = environment.render().astype(int)
        seen.append(int((image[..., 0] - image[..., 2] > 30).sum()))  # the robot is brown, all else grey or green
print(json.dumps(seen))
"""


@pytest.mark.slow
def test_the_picture_follows_a_robot_that_runs_away(tmp_path: Path) -> None:
    (worker := tmp_path / "worker.zip").write_bytes(worker_zip())
    words = [built_environment("torch").path / "bin/python", "-P", "-c", RUNS_AWAY]
    done = subprocess.run(
        words, env={**os.environ, "PYTHONPATH": str(worker)}, cwd=tmp_path, capture_output=True, text=True, check=True
    )
    here, far, *with_option = json.loads(done.stdout)
    assert here > 1000 and far == pytest.approx(here, rel=0.1)
    assert with_option[0] > 500 and with_option[1] == 0
