"""What a plan notes of MPI on the site, and of images that nothing on this machine can draw."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hpcrl.formats.plan import read_plan
from hpcrl.plan.needs import drawing_notes, mpi_notes, mpi_types
from hpcrl.rl.envs import offscreen
from hpcrl.slurm.client import Completed
from hpcrl.spec.cluster import Launch
from hpcrl.spec.library import Library
from hpcrl.spec.workload import Workload
from tests.builders import cells_of, command_study, dqn_study, planned


def workload(environment: str = "CartPole-v1", **more: Any) -> Workload:
    return Workload.model_validate({"algorithm": "dqn", "environment": environment, **more})


@pytest.mark.parametrize(
    ("cluster", "launch", "topology", "told"),
    [
        ("sol", None, "collective", False),  # it has `launch.mpi`
        ("sol", {}, "collective", True),
        ("sol", {}, "sequential", False),
        ("sol", {"arguments": ["--mpi=pmi2"]}, "collective", False),
        ("workstation", None, "collective", False),  # mpirun starts them
    ],
)
def test_a_profile_that_does_not_name_its_mpi_is_noted(
    cluster: str, launch: dict[str, Any] | None, topology: str, told: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shutil.which", lambda name: f"/usr/bin/{name}")
    profile = Library([]).cluster(cluster)
    if launch is not None:
        profile = profile.model_copy(update={"launch": Launch(**launch)})
    notes = mpi_notes(profile, workload(hyperparameters={"topology": "sequential"}), [{}, {"topology": topology}])
    assert len(notes) == told
    for note in notes:
        assert note.startswith(
            "a learner and its actors need MPI, and the profile of sol has no `launch.mpi`: srun takes"
        )


@pytest.mark.parametrize(("topology", "told"), [("asynchronous", True), ("sequential", False)])
def test_a_workstation_without_mpirun_is_noted(monkeypatch: pytest.MonkeyPatch, topology: str, told: bool) -> None:
    monkeypatch.setattr("shutil.which", lambda name: None)
    notes = mpi_notes(Library([]).cluster("workstation"), workload(), [{"topology": topology}])
    assert len(notes) == told
    for note in notes:
        assert note.startswith("a learner and its actors need MPI, and this machine has no mpirun on PATH: install")


def test_the_actors_of_a_whole_study_are_seen() -> None:
    profile = Library([]).cluster("sol").model_copy(update={"launch": Launch()})
    assert len(mpi_notes(profile, workload(hyperparameters={"topology": "pairwise"}), [{}])) == 1


def test_images_that_nothing_here_can_draw_are_noted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("MUJOCO_GL", "DISPLAY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(offscreen, "_LIBRARIES", {"egl": "libnone-1.so", "osmesa": "libc.so.6"})
    here, elsewhere = (Library([]).cluster(name) for name in ("workstation", "sol"))
    slider = ["CartPole-v1", "BoxSlider64-v0"]
    assert drawing_notes(here, slider, {}) == []
    (note,) = drawing_notes(here, slider, {"MUJOCO_GL": "egl"})
    assert note.startswith(
        "environment BoxSlider64-v0: MuJoCo cannot draw images here: MUJOCO_GL is egl, and libnone-1.so cannot be loaded: unset it, or "
    )
    for given, why in (
        (
            "glfw",
            "MUJOCO_GL is glfw, which needs a display, and DISPLAY is not set: unset it, or set it to egl or osmesa",
        ),
        ("Off", "MUJOCO_GL is off, which turns drawing off: unset it"),
        ("elg", "MUJOCO_GL is elg, and MuJoCo knows egl, osmesa and glfw: unset it"),
    ):
        (note,) = drawing_notes(here, slider, {"MUJOCO_GL": given})
        assert why in note
    shown = {"MUJOCO_GL": "glfw", "DISPLAY": ":0"}
    assert drawing_notes(here, slider, shown) == []  # MuJoCo will tell
    assert drawing_notes(here, slider, {"MUJOCO_GL": "osmesa "}) == []
    monkeypatch.setitem(offscreen._LIBRARIES, "osmesa", "libnone-2.so")
    (note,) = drawing_notes(here, slider, {})
    assert "neither libnone-1.so nor libnone-2.so can be loaded: install a GL library" in note
    assert drawing_notes(elsewhere, slider, {}) == []
    assert drawing_notes(here, ["CartPole-v1"], {}) == []
    study = dqn_study(axes={"framework": ["torch"]})
    study["workload"]["environment"] = "BoxSlider64-v0"
    assert note in read_plan(planned(tmp_path / "plan", study)).totals["notes"]


LISTED = "MPI plugin types are...\n\tnone\n\tpmi2\n\tcray_shasta\nspecific pmix plugin versions available: pmix_v4, pmix_v5\n"


@pytest.mark.parametrize(
    ("said", "known"),
    [
        (LISTED, {"none", "pmi2", "cray_shasta", "pmix_v4", "pmix_v5"}),
        ("srun: MPI types are...\nsrun: none\nsrun: pmix\n", {"none", "pmix"}),  # of older releases
        ("", set()),
    ],
)
def test_types_of_mpi_are_what_srun_lists(monkeypatch: pytest.MonkeyPatch, said: str, known: set[str]) -> None:
    monkeypatch.setattr("shutil.which", lambda name: f"/usr/bin/{name}")
    monkeypatch.setattr("hpcrl.plan.needs.run_command", lambda *_, **__: Completed(0, "", said))
    assert mpi_types() == known


def test_a_type_of_mpi_that_srun_here_does_not_know_is_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda name: f"/usr/bin/{name}")
    monkeypatch.setattr("hpcrl.plan.needs.run_command", lambda *_, **__: Completed(0, LISTED, ""))
    sol = Library([]).cluster("sol")
    (note,) = mpi_notes(sol, workload(), [{"topology": "collective"}])
    assert note.startswith(
        "`launch.mpi` of sol is pmix, and srun on this machine knows cray_shasta, none, pmi2, pmix_v4, pmix_v5"
    )
    known = sol.model_copy(update={"launch": Launch(mpi="pmix_v5")})
    assert mpi_notes(known, workload(), [{"topology": "collective"}]) == []


def test_a_command_s_topology_and_actors_are_its_own(tmp_path: Path) -> None:
    axes = {"topology": ["sequential", "collective"], "actors": [2, 4]}
    plan = planned(tmp_path / "p", command_study(["./mpi_dqn", "{topology}", "{actors}"], axes=axes))
    assert {cell["resources"]["tasks"] for cell in cells_of(plan)} == {1}
    opened = read_plan(plan)
    assert not any(opened.has_actors(cell["config"]) for cell in cells_of(plan))
    assert not any("MPI" in note for note in opened.totals["notes"])


@pytest.mark.parametrize(("name", "told"), [("HalfCheetah-v5", True), ("BoxSlider64-v0", True), ("CartPole-v1", False)])
def test_a_gl_library_that_mujoco_does_not_know_is_noted(name: str, told: bool) -> None:
    notes = drawing_notes(Library([]).cluster("workstation"), [name], {"MUJOCO_GL": "elg"})
    assert len(notes) == told
    assert all("MUJOCO_GL is elg, and MuJoCo knows egl, osmesa and glfw" in note for note in notes)


@pytest.mark.parametrize(("name", "told"), [("HalfCheetah-v5", True), ("CartPole-v1", False)])
def test_a_gl_library_that_is_not_here_is_noted_also_where_nothing_is_drawn(
    name: str, told: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(offscreen, "_LIBRARIES", {"egl": "libnone-1.so", "osmesa": "libc.so.6"})
    here = Library([]).cluster("workstation")
    assert drawing_notes(here, [name], {"MUJOCO_GL": "osmesa"}) == []
    notes = drawing_notes(here, [name], {"MUJOCO_GL": "egl"})
    assert len(notes) == told
    assert all(
        "MUJOCO_GL is egl, and libnone-1.so cannot be loaded, so that MuJoCo cannot be imported" in note
        for note in notes
    )
