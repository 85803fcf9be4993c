from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from hpcrl.errors import UsageError
from hpcrl.formats.facts import BEST_POSSIBLE, Asked
from hpcrl.formats.record import read_frames
from hpcrl.placeholders import fill
from hpcrl.rl.distributed.group import Group
from hpcrl.rl.envs.doors import Doors
from hpcrl.rl.envs.make import gymnasium_environment
from hpcrl.rl.evaluation import start_seeds
from hpcrl.run import training
from hpcrl.run.recorder import Recorder
from hpcrl.telemetry.phases import PhaseClock


@pytest.mark.parametrize(
    ("named", "there", "resources", "expected"),
    [
        ("3,5", 8, {"gpus": 2}, "5"),
        (None, 2, {"gpus": 2}, "1"),  # nobody has chosen, as where a cell is run by hand
        ("GPU-ab", 8, {"gpus": 1}, "GPU-ab"),
        (None, 2, {"gpus": 0}, None),
        ("", 2, {"gpus": 0}, ""),
    ],
)
def test_each_rank_of_a_node_has_a_gpu_of_its_own(
    monkeypatch: pytest.MonkeyPatch, named: str | None, there: int, resources: dict[str, int], expected: str | None
) -> None:
    """Driverless: NVML's list is a stand-in."""
    monkeypatch.setattr(os, "environ", {} if named is None else {"CUDA_VISIBLE_DEVICES": named})
    monkeypatch.setattr(training, "visible_gpus", lambda: dict.fromkeys(map(str, range(there)), "A100"))
    training.before_import(["numpy"], Asked(1, 1024, 60, **resources), Group(rank=1, ranks=2, local_rank=1))
    assert os.environ.get("CUDA_VISIBLE_DEVICES") == expected


def test_the_gpu_of_a_learner_is_hidden_from_its_actors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training, "visible_gpus", lambda: {"0": "A100", "1": "A100"})
    for rank, expected in enumerate(["0", "", ""]):
        monkeypatch.setattr(os, "environ", {})
        group = Group(rank=rank, ranks=3, local_rank=rank)
        training.before_import(["numpy"], Asked(1, 1024, 60, tasks=3, gpus=1), group, has_learner=True)
        assert os.environ["CUDA_VISIBLE_DEVICES"] == expected


@pytest.mark.parametrize(("has_learner", "expected"), [(True, "0"), (False, "1")])
def test_only_ranks_that_wait_within_mpi_give_their_cores_away_there(
    monkeypatch: pytest.MonkeyPatch, has_learner: bool, expected: str
) -> None:
    name = "OMPI_MCA_mpi_yield_when_idle"
    for before, after in (({}, expected), ({name: "true"}, "true")):
        monkeypatch.setattr(os, "environ", dict(before))
        group = Group(rank=1, ranks=3)
        training.before_import(["numpy"], Asked(1, 1024, 60, tasks=3), group, has_learner)
        assert os.environ[name] == after


@pytest.mark.parametrize(
    ("rank", "said"),
    [(0, "this cell asks for 1 GPUs, but no NVIDIA GPU is visible here"), (1, "expected 4 ranks, got 3")],
)
def test_a_node_of_actors_needs_no_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rank: int, said: str) -> None:
    """The actor goes on to what is wrong next."""
    monkeypatch.setattr(training, "visible_gpus", dict)
    clock, config = PhaseClock(), {"framework": "torch", "topology": "collective", "actors": 2, "seed": 1}
    asked, group = Asked(1, 1024, 60, tasks=4, gpus=1), Group(rank=rank, ranks=3)
    recorder = Recorder(tmp_path / "a.rec", clock)
    with pytest.raises(UsageError, match=said):
        training.train_cell(
            training.TrainingCell(WORKLOAD, config, asked), recorder, clock, lambda: False, tmp_path / "c.npz", group
        )


def test_a_learner_that_is_signalled_before_its_actors_have_come_leaves_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = SimpleNamespace(size=3, rank=0, Iallgather=lambda mine, of_all: SimpleNamespace(Test=lambda: False))
    monkeypatch.setattr(training, "join", lambda group: world)
    clock, config = PhaseClock(), {"framework": "numpy", "topology": "collective", "actors": 2, "seed": 1}
    asked, group = Asked(1, 1024, 60, tasks=3), Group(rank=0, ranks=3)
    recorder = Recorder(tmp_path / "a.rec", clock)
    ended = training.train_cell(
        training.TrainingCell(WORKLOAD, config, asked), recorder, clock, lambda: True, tmp_path / "c.npz", group
    )
    assert (ended.outcome, ended.leaves_others) == ("preempted", True)
    assert ended.reason == "after a signal an actor did not answer for 1 s: the training had not begun"


def test_a_command_keeps_the_settings_of_its_own_libraries(monkeypatch: pytest.MonkeyPatch) -> None:
    for named, changed in ((["torch"], True), (["my own"], False), ([], False)):
        monkeypatch.setattr(os, "environ", {"TORCHINDUCTOR_CACHE_DIR": "kept"})
        training.before_import(named, Asked(1, 1024, 60), Group(rank=0, ranks=2))
        assert ("HOROVOD_CYCLE_TIME" in os.environ) == changed
        assert os.environ["TORCHINDUCTOR_CACHE_DIR"] == "kept"


def test_jax_beside_a_learner_has_its_own_variables_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """One core, and no memory of a GPU that it does not need yet."""
    for named in (["torch", "jax"], ["torch"]):
        monkeypatch.setattr(os, "environ", {"TORCHINDUCTOR_CACHE_DIR": "kept"})
        training.before_import(named, Asked(1, 1024, 60), Group())
        has_jax = "jax" in named
        assert (os.environ.get("XLA_FLAGS") == "--xla_cpu_multi_thread_eigen=false") == has_jax
        assert (os.environ.get("XLA_PYTHON_CLIENT_PREALLOCATE") == "false") == has_jax


WORKLOAD: dict[str, Any] = {
    "algorithm": "dqn",
    "environment": "CartPole-v1",
    "max_episode_steps": 7,
    "hyperparameters": {"total_steps": 300, "hidden": [8], "evaluation_interval": 100, "evaluation_episodes": 2},
}


class Trained:
    """A NumPy cell, trained here."""

    def __init__(
        self, directory: Path, goal: float | None = None, workload: dict[str, Any] = WORKLOAD, **config: Any
    ) -> None:
        directory.mkdir()
        self.clock = PhaseClock()
        recorder = Recorder(directory / "a.rec", self.clock)
        recorder.header({})
        values = {"framework": "numpy", "seed": 1, **config}
        asked = iter(range(10**9))

        def stop() -> bool:
            return next(asked) > 1_000  # more steps than any of these cells takes

        ended = training.train_cell(
            training.TrainingCell(workload, values, Asked(1, 1024, 60), goal),
            recorder,
            self.clock,
            stop,
            directory / "c.npz",
            Group(),
        )
        recorder.footer(ended.outcome, ended.reason, ended.facts)
        self.facts = ended.facts
        self.frames = {frame.kind: frame.payload for frame in read_frames(directory / "a.rec")}

    @property
    def episodes(self) -> Any:
        return self.frames["episodes"]["table"]


def test_a_cell_trains_as_its_study_and_its_own_axes_say(tmp_path: Path) -> None:
    plain = Trained(tmp_path / "plain")
    shorter = Trained(tmp_path / "shorter", total_steps=200, notes="not a hyperparameter")
    assert (plain.facts["steps"], shorter.facts["steps"]) == (300, 200)
    assert plain.episodes[:, 3].max() == 7  # max_episode_steps
    assert plain.facts["final_score"] == 7
    assert plain.facts["goal_step"] is None


def test_a_cell_on_doors_reports_the_best_return_that_its_evaluations_can_have(tmp_path: Path) -> None:
    doors = WORKLOAD | {"environment": "Doors-v0", "max_episode_steps": 20}
    (entry,) = Trained(tmp_path / "doors", workload=doors, seed=3).frames["values"]["entries"]
    wanted = Doors().best_mean_return(start_seeds(3, 3, 2), 20)
    assert entry["values"] == {BEST_POSSIBLE: pytest.approx(wanted)}
    assert "values" not in Trained(tmp_path / "pole").frames


def test_a_cell_steps_its_environments_in_processes(tmp_path: Path) -> None:
    """The environments of a cell reach their processes, and the training is the same as in one process."""
    ppo = {"algorithm": "ppo", "environments": 3, "rollout_steps": 10, "minibatch_size": 30, "epochs": 2}
    one, other = (Trained(tmp_path / stepping, stepping=stepping, **ppo) for stepping in ("sync", "processes"))
    assert one.facts["steps"] == other.facts["steps"] == 300
    assert len(one.episodes) > 30
    np.testing.assert_array_equal(one.episodes[:, [0, 2, 3]], other.episodes[:, [0, 2, 3]])


def test_the_environment_has_the_options_of_its_study_and_its_own_axes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = []

    def made(*arguments: Any) -> Any:
        environment = gymnasium_environment(*arguments)
        sizes.append(environment.observation_space.shape[0])
        return environment

    monkeypatch.setattr(training, "gymnasium_environment", made)
    workload = WORKLOAD | {"environment": "Doors-v0", "environment_options": {"size": 3, "extra_step": True}}
    plain = Trained(tmp_path / "plain", workload=workload)
    assert set(sizes) == {9} and plain.episodes[:, 3].max() == 8
    sizes.clear()
    other = Trained(tmp_path / "other", workload=workload, extra_step=False, size=5)
    assert set(sizes) == {25} and other.episodes[:, 3].max() == 7


def test_an_axis_limits_the_episodes(tmp_path: Path) -> None:
    assert Trained(tmp_path / "of-study").episodes[:, 3].max() == 7
    assert Trained(tmp_path / "of-axis", max_episode_steps=5).episodes[:, 3].max() == 5


def test_two_seeds_are_two_cells(tmp_path: Path) -> None:
    """Without the limit of steps episodes end when they will."""
    long = WORKLOAD | {"max_episode_steps": None}
    tables = []
    for number, seed in enumerate((1, 1, 2)):
        clock = PhaseClock()
        recorder = Recorder(tmp_path / f"{number}.rec", clock)
        config = {"framework": "numpy", "seed": seed}
        training.train_cell(
            training.TrainingCell(long, config, Asked(1, 1024, 60)),
            recorder,
            clock,
            lambda: False,
            tmp_path / "c",
            Group(),
        )
        recorder.footer("completed", None, {})
        (table,) = [
            each.payload["table"] for each in read_frames(tmp_path / f"{number}.rec") if each.kind == "episodes"
        ]
        tables.append(table[:, [0, 2, 3]])
    np.testing.assert_array_equal(tables[0], tables[1])
    assert tables[0].tolist() != tables[2].tolist()


def test_the_goal_of_a_study_is_its_cells_goal(tmp_path: Path) -> None:
    found = Trained(tmp_path / "a", goal=7.0)
    assert found.facts["goal_step"] == 100
    first = found.frames["evaluations"]["table"][0]
    assert found.facts["goal_wall_time"] == first[1]
    assert found.facts["goal_time"] < found.facts["training_time"]
    assert found.facts["goal_time"] < found.facts["goal_wall_time"]
    apart = sum(found.clock.seconds[phase] for phase in ("setup", "compile", "evaluate"))
    assert found.facts["training_time"] < found.clock.total() - apart
    assert found.facts["evaluation_time"] == found.clock.seconds["evaluate"] > 0
    assert found.facts["setup_time"] == found.clock.seconds["setup"] > 0


def test_what_is_no_axis_stays_as_it_is() -> None:
    assert fill("{a} {b} {} {{a}}", {"a": 1}) == "1 {b} {} {a}"
