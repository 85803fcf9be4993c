"""Which software environment a cell has: its framework's, or the one of its way of stepping."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hpcrl.errors import UsageError
from hpcrl.formats.plan import read_plan
from hpcrl.pins import name_of
from hpcrl.spec.library import Library
from tests.builders import cells_of, command_study, dqn_study, planned


def doors_study(**changes: Any) -> dict[str, Any]:
    study = dqn_study(goal=None, **changes)
    study["workload"] |= {"environment": "Doors-v0"}
    return study


def software(plan: Path, *keys: str) -> dict[tuple[Any, ...], str]:
    """Return the name of the environment of each cell of a plan, by some of its values."""
    names = {environment.key: environment.name for environment in read_plan(plan).environments}
    return {tuple(cell["config"].get(key) for key in keys): names[cell["environment"]] for cell in cells_of(plan)}


def test_a_learner_of_another_framework_gets_an_environment_with_jax(tmp_path: Path) -> None:
    ways: list[dict[str, Any]] = [
        {"framework": name, "stepping": stepping} for name in ("numpy", "torch", "jax") for stepping in ("sync", "compiled")
    ]  # fmt: skip
    study = doors_study(axes={"way": [*ways, {"framework": "mxnet"}, {"framework": "jax", "execution": "fused"}]})
    assert software(planned(tmp_path / "p", study), "framework", "stepping", "execution") == {
        ("numpy", "sync", "eager"): "numpy",
        ("numpy", "compiled", "eager"): "jax",
        ("torch", "sync", "eager"): "torch",
        ("torch", "compiled", "eager"): "torch-jax",
        ("jax", "sync", "eager"): "jax",
        ("jax", "compiled", "eager"): "jax",
        ("mxnet", None, "eager"): "mxnet",
        ("jax", None, "fused"): "jax",
    }


def test_it_counts_where_the_way_of_stepping_is_named(tmp_path: Path) -> None:
    study = doors_study(axes={"framework": ["torch"]})
    study["workload"]["hyperparameters"]["stepping"] = "compiled"
    plan = planned(tmp_path / "p", study)
    assert software(plan, "framework") == {("torch",): "torch-jax"}
    assert read_plan(plan).frameworks_of(cells_of(plan)[0]["config"]) == ["torch", "jax"]
    # A command's words are its own.
    axes = {"framework": ["torch"], "stepping": ["compiled"]}
    plan = planned(tmp_path / "c", command_study(["{framework}", "{stepping}"], axes=axes))
    assert software(plan, "framework") == {("torch",): "torch"}
    assert read_plan(plan).frameworks_of(cells_of(plan)[0]["config"]) == ["torch"]


def test_an_environment_that_a_study_names_must_have_jax(tmp_path: Path) -> None:
    study = doors_study(axes={"framework": ["torch"], "stepping": ["sync", "compiled"]}, environment="torch")
    told = "environment torch: has no jax, which `stepping: compiled` needs: leave `environment` out, or name one that has it"
    with pytest.raises(UsageError, match=told):
        planned(tmp_path / "p", study)
    study["environment"] = "torch-jax"
    assert set(software(planned(tmp_path / "p", study), "stepping").values()) == {"torch-jax"}
    study |= {"environment": "torch", "exclude": [{"stepping": "compiled"}]}
    assert set(software(planned(tmp_path / "q", study), "stepping").values()) == {"torch"}


def test_torch_with_jax_is_torch_s_environment_and_jax_s_pins() -> None:
    library = Library()
    both, torch, jax = (library.environment(name) for name in ("torch-jax", "torch", "jax"))
    for flavour in torch.flavours:
        pins = {name_of(pin) for pin in both.pins(flavour, horovod=True)}
        of_torch = {name_of(pin) for pin in torch.pins(flavour, horovod=True)}
        assert of_torch <= pins
    hashes, of_torch_s = library.hashes("torch-jax"), library.hashes("torch")
    assert {pin: hashes[pin] for pin in of_torch_s} == of_torch_s
    added = {name_of(pin) for pin in both.pins("cpu", horovod=False)} - {name_of(pin) for pin in torch.pins("cpu", horovod=False)}  # fmt: skip
    assert added <= {name_of(pin) for pin in jax.pins("cpu", horovod=False)}
    assert {pin.partition("==")[0] for pin in added} == {"jax", "jaxlib", "ml-dtypes", "opt-einsum", "scipy"}
    assert (both.framework, both.python, both.conda) == (torch.framework, torch.python, torch.conda)
