from __future__ import annotations

from pathlib import Path
from typing import Any

import optuna
import pytest

from hpcrl.errors import SpecError, UsageError
from hpcrl.formats.plan import read_cells, read_plan
from hpcrl.run.search import _pruner
from hpcrl.searches import SearchFacts, first_pruning
from hpcrl.spec.library import Library
from tests.builders import command_study, dqn_study, planned, write_yaml

RATE = {"learning_rate": {"low": 1e-4, "high": 1e-2, "log": True}}


@pytest.mark.parametrize(
    ("search", "said"),
    [
        ({"trials": 0}, "search.trials: expected a number of at least 1, got 0"),
        ({"space": {}}, "search.space: "),
        ({"space": {"learning_rate": {"low": 1.0, "high": 0.1}}}, "expected `low` below `high`, got 1.0 and 0.1"),
        ({"space": {"learning_rate": {"low": 0, "high": 0.1, "log": True}}}, "because `log` is true, got 0"),
        ({"space": {"batch_size": {"low": 16, "high": 64, "step": 5}}}, "expected a divisor of 48"),
        ({"space": {"batch_size": {"low": 16, "high": 64, "step": 0}}}, "step: expected a number greater than 0"),
        ({"space": {"batch_size": {"low": 16, "high": 64, "step": 1.5}}}, "step: expected a whole number"),
        ({"space": {"batch_size": {"low": 16, "high": 64, "step": 16, "log": True}}}, "with `log` has no `step`"),
        ({"space": {"batch_size": {"low": 0, "high": 64}}}, "batch_size: expected a whole number from 1"),
        ({"space": {"batch_size": {"low": 1.5, "high": 64.0}}}, "batch_size: expected a whole number from 1"),
        ({"space": {"double": [True]}}, "double: expected at least two values"),
        ({"space": {"double": []}}, "double: expected at least two values"),
        ({"space": {"double": [True, True]}}, "double: repeats a value"),
        (
            {"space": {"learning_rat": [0.1, 0.2]}},
            "DQN has no hyperparameter 'learning_rat'; did you mean 'learning_rate'?",
        ),
        ({"space": {"batch_size": {"low": 16, "high": 200_000}}}, "expected at most buffer_size"),
        ({"space": {"hidden": [16, 32]}}, "hidden: "),
        ({"space": {"max_episode_steps": {"low": 0, "high": 30}}}, "expected a whole number of at least 1, got 0"),
        ({"sampler": "grid"}, "search.sampler: "),
        ({"directions": {"final_scor": "maximize"}}, "no objective 'final_scor'; did you mean 'final_score'?"),
        ({"directions": {"final_score": "up"}}, "search.directions.final_score: "),
        (
            {"pruner": "median", "directions": {"final_score": "maximize", "training_time": "minimize"}},
            "a pruner needs one objective",
        ),
        ({"pruner_options": {"min_resource": 2}}, "min_resource: pruner none has no options"),
        (
            {"pruner": "median", "pruner_options": {"n_warmup_step": 2}},
            "median has no option 'n_warmup_step'; did you mean 'n_warmup_steps'?",
        ),
        (
            {"pruner": "halving", "pruner_options": {"reduction_factor": 1}},
            "expected a whole number of at least 2, got 1",
        ),
        (
            {"pruner": "hyperband", "pruner_options": {"min_resource": 5, "max_resource": 4}},
            "max_resource: expected at least min_resource, which is 5, got 4",
        ),
        ({"pruner": "hyperband", "pruner_options": {"max_resource": "auto"}}, "pruner_options.max_resource: "),
        ({"sampler": "nsga2"}, "nsga2 is for several objectives: use tpe"),
        ({"seed": 1}, "search.seed: 1 is one of the study's seeds"),
    ],
)
def test_a_wrong_search_is_refused_with_file_and_line(tmp_path: Path, search: dict[str, Any], said: str) -> None:
    file = write_yaml(tmp_path / "study.yaml", dqn_study(search={"trials": 3, "space": RATE, **search}))
    with pytest.raises(UsageError) as refused:
        Library().study(str(file))
    assert said in str(refused.value)
    assert f"{file}:" in str(refused.value)


@pytest.mark.parametrize(
    "space", [{"learning_rate": {"low": 0, "high": 0.1, "log": True}}, {"framework": ["torch", "jax"]}]
)
def test_one_mistake_has_one_sentence(tmp_path: Path, space: dict[str, Any]) -> None:
    file = write_yaml(tmp_path / "study.yaml", dqn_study(search={"trials": 3, "space": space}))
    with pytest.raises(SpecError) as refused:
        Library().study(str(file))
    assert len(refused.value.problems) == 1


@pytest.mark.parametrize(
    "workload",
    [
        {"hyperparameters": {"evaluation_interval": 0}},
        {"environment": "Doors-v0", "environment_options": {"blah": 3}},
    ],
)
def test_a_mistake_outside_a_search_is_not_told_as_one_of_its_space(tmp_path: Path, workload: dict[str, Any]) -> None:
    study = dqn_study(search={"trials": 3, "space": RATE, "pruner": "median"})
    study["workload"] |= workload
    with pytest.raises(SpecError) as refused:
        Library().study(str(write_yaml(tmp_path / "study.yaml", study)))
    (said,) = refused.value.problems
    assert "search" not in said


def test_nothing_is_computed_from_what_trials_draw(tmp_path: Path) -> None:
    """The plan would compute it from the default."""
    search = {"trials": 3, "space": RATE}
    computed = {"final_learning_rate": "learning_rate / 10", "buffer_size": "1000 * cpus"}
    file = write_yaml(tmp_path / "study.yaml", dqn_study(search=search, computed=computed))
    with pytest.raises(SpecError) as refused:
        Library().study(str(file))
    (said,) = refused.value.problems
    assert "computed.final_learning_rate: is computed from learning_rate, which each trial draws" in said
    del computed["final_learning_rate"]
    Library().study(str(write_yaml(file, dqn_study(search=search, computed=computed))))


def test_a_command_has_one_sentence_for_a_value_computed_from_what_trials_draw(tmp_path: Path) -> None:
    study = command_study(
        ["true", "{x}", "{y}"], axes={}, search={"trials": 3, "space": {"x": [1, 2]}}, computed={"y": "2 * x"}
    )
    with pytest.raises(SpecError) as refused:
        Library().study(str(write_yaml(tmp_path / "study.yaml", study)))
    assert len(refused.value.problems) == 1


def test_what_a_search_draws_need_not_be_possible_at_its_default(tmp_path: Path) -> None:
    """The default of train_interval, 256, is no multiple of 1,024 environments, but all that are drawn are."""
    space: dict[str, Any] = {"train_interval": {"low": 1024, "high": 4096, "step": 1024}}
    study = dqn_study(search={"trials": 3, "space": space})
    study["workload"]["hyperparameters"] |= {"environments": 1024, "total_steps": 9000}
    library, file = Library(), tmp_path / "study.yaml"
    assert library.study(str(write_yaml(file, study))).search is not None
    space["train_interval"] |= {"low": 512, "high": 1024, "step": 512}
    with pytest.raises(
        UsageError, match=r"train_interval: 512: expected a multiple of environments, which is 1024 \(at"
    ):
        library.study(str(write_yaml(file, study)))


FUSED = {"framework": [{"framework": "jax", "execution": "fused"}]}


@pytest.mark.parametrize(
    ("axes", "hyperparameters", "environment", "space", "said"),
    [
        # Settings that a mode ignores.
        (FUSED, {}, None, {"target_share": {"low": 0.01, "high": 1.0}}, r"target_share: fused has the environment in the learner's program"),
        (FUSED, {}, None, {"environments": [1, 16]}, r"environments: fused has the environment in the learner's program"),
        ({}, {}, None, {"stepping": ["sync", "arrays"]}, r"stepping: there is no CartPole-v1 as NumPy arrays"),
        # Both ends are possible, and hardly anything between them.
        (
            {}, {"environments": 1024}, None, {"train_interval": {"low": 1024, "high": 4096}},
            r"train_interval: \d+: expected a multiple of environments, which is 1024 \(at train_interval: \d+\): of 100 random draws \d+ cannot be trained",
        ),
        # Possible with one value of an axis, and not with another.
        (
            {"environments": [64, 1000]}, {}, None, {"train_interval": {"low": 640, "high": 6400, "step": 640}},
            r"expected a multiple of environments, which is 1000",
        ),
        # Options that do not fit together.
        ({}, {}, "Doors-v0", {"size": {"low": 3, "high": 15}, "doors": {"low": 1, "high": 8}}, r"search.space.doors: "),
    ],
)  # fmt: skip
def test_spaces_whose_draws_cannot_be_trained_are_refused(
    tmp_path: Path,
    axes: dict[str, Any],
    hyperparameters: dict[str, Any],
    environment: str | None,
    space: dict[str, Any],
    said: str,
) -> None:
    study = dqn_study(search={"trials": 3, "space": space}, goal=None)
    study["axes"] |= axes
    study["workload"]["hyperparameters"] |= {"total_steps": 9000, **hyperparameters}
    study["workload"] |= {"environment": environment} if environment else {}
    with pytest.raises(UsageError, match=said):
        Library().study(str(write_yaml(tmp_path / "study.yaml", study)))


def test_what_an_axis_makes_possible_is_not_refused(tmp_path: Path) -> None:
    """Batches of 150,000 do not fit into the default replay of 100,000."""
    study = dqn_study(search={"trials": 3, "space": {"batch_size": {"low": 16, "high": 150_000}}})
    study["axes"]["buffer_size"] = [200_000]
    assert Library().study(str(write_yaml(tmp_path / "study.yaml", study))).search is not None


@pytest.mark.parametrize("name", ["doors-search-torch", "doors-search-jax", "doors-search-listing"])
def test_the_article_s_spaces_are_studies(name: str) -> None:
    search = Library().study(name).search
    assert search is not None and search.pruner == "hyperband" and search.trials == (12 if "listing" in name else 40)


def test_a_pruner_without_evaluations_is_refused(tmp_path: Path) -> None:
    study = dqn_study(search={"trials": 3, "space": RATE, "pruner": "hyperband"})
    study["workload"]["hyperparameters"]["evaluation_interval"] = 1500
    file = write_yaml(tmp_path / "study.yaml", study)
    with pytest.raises(UsageError, match=r"evaluated once, at its end .* so that nothing can be pruned"):
        Library().study(str(file))
    # It is each combination of the axes that counts, not the defaults.
    study["axes"]["evaluation_interval"] = [500, 1500]
    del study["workload"]["hyperparameters"]["evaluation_interval"]
    with pytest.raises(UsageError, match=r"a trial of 1,500 steps is evaluated once, .*interval` 1,500"):
        Library().study(str(write_yaml(file, study)))
    study["axes"]["evaluation_interval"] = [500, 1000]  # 1,000 and 1,500: the first can prune
    assert Library().study(str(write_yaml(file, study))).search is not None
    command = command_study(["echo", "{x}"], axes={}, search={"trials": 3, "space": {"x": [1, 2]}, "pruner": "median"})
    with pytest.raises(UsageError, match="a pruner needs the evaluations of built-in training"):
        Library().study(str(write_yaml(tmp_path / "command.yaml", command)))


@pytest.mark.parametrize(
    ("pruner", "options", "first"),
    [
        ("median", {"n_warmup_steps": 2}, 2),
        ("hyperband", {"min_resource": 2}, 2),
        ("halving", {"min_resource": 2}, 2),
        ("halving", {"min_early_stopping_rate": 1, "reduction_factor": 3}, 3),
    ],
)
def test_a_pruner_that_waits_for_the_last_evaluation_is_refused(
    tmp_path: Path, pruner: str, options: dict[str, int], first: int
) -> None:
    search = {"trials": 3, "space": RATE, "pruner": pruner, "pruner_options": options}
    study, file = dqn_study(search=search), tmp_path / "study.yaml"
    settings = study["workload"]["hyperparameters"]
    settings |= {"total_steps": 500 * first, "evaluation_interval": 500}
    with pytest.raises(
        UsageError, match=rf"{pruner} .* waits for evaluation {first}, .* has {first}, .* nothing can be pruned"
    ):
        Library().study(str(write_yaml(file, study)))
    settings["total_steps"] += 1  # one evaluation more
    assert Library().study(str(write_yaml(file, study))).search is not None
    settings["total_steps"] -= 1
    del settings["evaluation_interval"]
    study["search"]["space"] = {"evaluation_interval": {"low": 100, "high": 500}}
    assert Library().study(str(write_yaml(file, study))).search is not None


@pytest.mark.parametrize("pruner", ["median", "hyperband", "halving"])
def test_the_first_evaluation_at_which_optuna_s_pruner_can_end_a_trial_is_known(pruner: str) -> None:
    """A trial that is worse than all before it, asked of Optuna itself."""
    options = {"median": {"n_warmup_steps": 2}, "hyperband": {"min_resource": 2, "max_resource": 4}, "halving": {"min_early_stopping_rate": 1, "reduction_factor": 2}}[pruner]  # fmt: skip
    facts = SearchFacts(9, {}, {"final_score": "maximize"}, pruner=pruner, pruner_options=options)
    study = optuna.create_study(direction="maximize", pruner=_pruner(facts))
    ended = []
    for number in range(40):
        trial = study.ask()
        for step in range(1, 9):
            trial.report(100.0 - number, step)
            if trial.should_prune():
                ended.append(step)
                break
        study.tell(trial, 100.0 - number)
    assert min(ended) == first_pruning(pruner, options)


def test_a_key_is_set_in_one_place_only(tmp_path: Path) -> None:
    study = dqn_study(search={"trials": 3, "space": RATE})
    study["axes"]["learning_rate"] = [0.1, 0.2]
    with pytest.raises(UsageError, match="learning_rate is set by an axis, too"):
        Library().study(str(write_yaml(tmp_path / "a.yaml", study)))
    study = dqn_study(search={"trials": 3, "space": RATE})
    study["workload"]["hyperparameters"]["learning_rate"] = 0.1
    with pytest.raises(UsageError, match=r"learning_rate is set in `workload.hyperparameters`, too"):
        Library().study(str(write_yaml(tmp_path / "b.yaml", study)))
    command = command_study(["echo", "{y}"], axes={}, search={"trials": 3, "space": {"x": [1, 2], "y": [1, 2]}})
    with pytest.raises(UsageError, match=r"no part of the workload has \{x\}"):
        Library().study(str(write_yaml(tmp_path / "c.yaml", command)))


def test_trials_have_one_rank(tmp_path: Path) -> None:
    study = dqn_study(search={"trials": 3, "space": RATE}, resources={"tasks": 2, "parallelism": "horovod"})
    with pytest.raises(UsageError, match="trials have one rank"):
        Library().study(str(write_yaml(tmp_path / "study.yaml", study)))


def test_each_search_has_its_trials_and_then_its_best_on_every_seed(tmp_path: Path) -> None:
    study = dqn_study(search={"trials": 3, "space": RATE}, seeds=[1, 2])
    study["axes"]["gamma"] = [0.9, 0.99]
    plan = planned(tmp_path / "p", study)
    cells = [
        [(cell.config["gamma"], cell.config["search"], cell.config["seed"]) for cell in read_cells(plan, job)]
        for job in read_plan(plan).cell_jobs()
    ]
    assert cells == [
        [(gamma, "trial", 0) for gamma in (0.9, 0.99) for _ in range(3)],
        [(gamma, "best", seed) for seed in (1, 2) for gamma in (0.9, 0.99)],
    ]


def test_a_space_has_options_of_the_environment_and_the_limit_of_episodes(tmp_path: Path) -> None:
    space = {"size": {"low": 5, "high": 15}, "same_column": [True, False], "max_episode_steps": {"low": 10, "high": 17}}
    study = dqn_study(search={"trials": 3, "space": space})
    study["workload"]["environment"] = "Doors-v0"
    file = write_yaml(tmp_path / "study.yaml", study)
    read = Library().study(str(file))
    assert read.search is not None and set(read.search.space) == set(space)
    study["search"]["space"]["size"]["low"] = 1
    with pytest.raises(UsageError, match=r"search\.space\.size: expected a whole number from 3 to 100, got 1"):
        Library().study(str(write_yaml(file, study)))


@pytest.mark.parametrize(
    "rule", [{"trial": 2}, {"search": "trial"}, {"framework": "numpy", "seed": 0}, {"seed": [0, 1]}]
)
def test_trials_cannot_be_excluded(tmp_path: Path, rule: dict[str, Any]) -> None:
    study = dqn_study(search={"trials": 3, "space": RATE}, exclude=[rule])
    with pytest.raises(
        UsageError, match=r"would exclude trials, which the best one is chosen from: set `search.trials`"
    ):
        Library().study(str(write_yaml(tmp_path / "study.yaml", study)))


def test_seeds_of_the_best_runs_can_be_excluded(tmp_path: Path) -> None:
    study = dqn_study(search={"trials": 3, "space": RATE}, seeds=[1, 2], exclude=[{"seed": 2}])
    assert len(list(read_cells(planned(tmp_path / "p", study)))) == 4


def test_a_trial_cannot_choose_its_software_environment(tmp_path: Path) -> None:
    space = {"stepping": ["arrays", "compiled"]}
    study = dqn_study(axes={"framework": ["jax", "torch"]}, search={"trials": 3, "space": space})
    study["workload"] |= {"environment": "Doors-v0"}
    file = tmp_path / "study.yaml"
    told = "space.stepping: PyTorch has another software environment for compiled environments, which a trial cannot choose: make it an axis"
    with pytest.raises(UsageError, match=told):
        Library().study(str(write_yaml(file, study)))
    for changes in ({"axes": {"framework": ["jax"]}}, {"environment": "torch-jax"}):
        assert Library().study(str(write_yaml(file, study | changes))).search is not None
    space["stepping"] = ["arrays", "sync"]
    assert Library().study(str(write_yaml(file, study))).search is not None
