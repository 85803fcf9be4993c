"""The frameworks against the NumPy learner in float64, each in its own environment, built as for any user."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from hpcrl.catalogue.registry import algorithms, frameworks
from hpcrl.environments.build import Built
from hpcrl.formats.worker import worker_zip
from tests.builders import SHARED_CACHE, built_environment
from tests.rl.cases import CASES, part_of

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]
MODES = [
    ("torch", "eager"), ("torch", "lazy"),
    ("tensorflow", "eager"), ("tensorflow", "lazy"), ("tensorflow", "xla"),
    ("jax", "eager"), ("jax", "lazy"),
    ("mxnet", "eager"), ("mxnet", "lazy"),
]  # fmt: skip
# A mode of each framework in which everything is tested. Of the others, which run the same page in another way, less is.
WHOLE = [("torch", "eager"), ("tensorflow", "lazy"), ("jax", "lazy"), ("mxnet", "lazy")]
# What `compiled` says of a mode that really compiled: one program for updates, whatever the batch and the rates.
COMPILED = {
    ("torch", "lazy"): "graphs, 0 graph breaks",
    ("tensorflow", "lazy"): "tf.function: 1 update traces",
    ("tensorflow", "xla"): "tf.function with XLA: 1 update traces",
    ("jax", "lazy"): "jax.jit: 1 update programs",
    ("mxnet", "lazy"): "bound symbols: 1 of updates",
}


@pytest.fixture(scope="module")
def worker(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The code as a cell has it; the programs of the tests find each other through the repository."""
    path = tmp_path_factory.mktemp("worker") / "worker.zip"
    path.write_bytes(worker_zip())
    return path


def run_program(built: Built, worker: Path, program: str, *arguments: str, **variables: str) -> str:
    environment = {**os.environ, "PYTHONPATH": f"{worker}:{ROOT}", "OMP_NUM_THREADS": "1", "TF_CPP_MIN_LOG_LEVEL": "3"}
    done = subprocess.run(
        [built.path / "bin/python", "-m", program, *arguments],
        env=environment | variables, capture_output=True, text=True, check=False, timeout=1800,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


@pytest.mark.parametrize("framework", ["numpy", "torch", "tensorflow", "jax", "mxnet"])
def test_environments_are_cpu_only(framework: str) -> None:
    built = built_environment(framework)
    packages = [path.name.lower() for path in (built.path / "lib/python3.11/site-packages").glob("*.dist-info")]
    assert len(packages) > 5
    assert not [name for name in packages if name.startswith(("nvidia_c", "triton", "cuda", "jax_cuda"))]


# How far a weight may be from the exact one after one update: two spacings of float32 numbers from 0.5 to 1, where the
# largest weights are. It was 5e-8, which held on other machines: on one CPU the same code gives 5.7e-8 (XLA) and 7.0e-8
# (eager JAX), both with Adam and gradients clipped to a norm of 0.1. A wrong Adam formula strays 1.4e-4.
ONE_UPDATE = 2.0**-23


# How far aux may be: KL divergences of about 0.1, and cross-entropies of about 10, of which MXNet's logarithms miss 1.2e-6.
AUX = {"dqn": 0.0, "ppo": 1e-6, "rainbow": 5e-5, "td3": 0.0, "vpg": 0.0}
# The steps of algorithms that have two: a program for each.
TWO_STEPS = ("td3", "vpg")
# The target copies of algorithms that have some: lazy JAX has a program for each size.
COPIES = {"dqn": ("target",), "rainbow": ("target",), "td3": ("target_actor", "target_critics")}


@pytest.mark.parametrize(("framework", "execution"), MODES)
def test_ten_updates_agree_with_the_specification(worker: Path, framework: str, execution: str) -> None:
    """Within :data:`ONE_UPDATE` after one update, 1e-6 after ten; a wrong Adam formula strays 1.4e-4."""
    # Each of torch's compiled cases costs many seconds of compiling.
    part = "values" if (framework, execution) == ("torch", "lazy") else "pairs"
    part = "all" if (framework, execution) in WHOLE else part
    names = [name for name in CASES if framework in algorithms()[name].frameworks]
    check_parity(worker, names, framework, execution, part)


@pytest.mark.parametrize(("framework", "execution"), WHOLE)
def test_a_few_cases_agree_with_the_specification(worker: Path, framework: str, execution: str) -> None:
    """Nearly every option once: what tools/mutants runs for each mistake in a learner."""
    check_parity(worker, ["dqn"], framework, execution, "few")


def check_parity(worker: Path, names: list[str], framework: str, execution: str, part: str) -> None:
    """Run all algorithms in one process: importing a framework takes seconds."""
    built = built_environment(framework)
    out = run_program(built, worker, "tests.rl.parity_program", framework, execution, part, *names)
    found = json.loads(out.splitlines()[-1])
    assert list(found) == names
    for algorithm, cases in found.items():
        assert len(cases) == len(part_of(algorithm, part)) >= 2
        for case in cases:
            check_case(case, algorithm, framework, execution)


def check_case(case: dict[str, Any], algorithm: str, framework: str, execution: str) -> None:
    assert case["one"] < ONE_UPDATE, case
    assert case["ten"] < 1e-6, case
    assert case["target"] < 1e-6, case
    assert case["moved"] > 1e-3, case
    assert case["agree"] == 1000, case
    assert case["aux"] <= AUX[algorithm], case
    assert case["sampled"] < 1e-5, case
    assert case["restored"], case
    compiled = COMPILED.get((framework, execution), "nothing: ")
    if algorithm in TWO_STEPS:
        compiled = compiled.replace("1 update", "2 update").replace("1 of updates", "2 of updates")
    assert compiled in case["compiled"], case
    if (framework, execution) == ("jax", "lazy"):
        moved = len(COPIES.get(algorithm, ()))
        assert (f", {moved} programs that move target copies" in case["compiled"]) == bool(moved), case


def check_dqn(facts: dict[str, Any], framework: str, execution: str, part: str) -> None:
    # The five probe environments: how far the learned values are from the true ones.
    assert len(facts["probes"]) == (5 if part == "whole" else 0)
    assert max(facts["probes"], default=0.0) < 0.05, facts
    assert facts["probes with everything"] < 0.05, facts
    assert facts["identical"], facts
    assert facts["diverged"] == "diverged", facts
    if execution == "fused":
        return
    # Errors -1.5 and 1; with the double form -0.5 and 1 (see dqn_program.losses).
    by_hand = {"huber False": 0.75, "huber True": 0.3125, "mse False": 1.625, "mse True": 0.625}
    assert facts["losses"] == pytest.approx(by_hand, abs=1e-6)
    assert ("acting in NumPy" in facts) == (part == "whole")
    assert facts.get("acting in NumPy", 0.0) < 0.05
    if framework == "numpy":
        return
    # `defaults: framework`: the framework's own optimisers have the formulae that docs/frameworks.md states ...
    steps = facts["first steps"]
    for optimizer in ("adam", "rmsprop", "sgd"):
        assert steps[optimizer] < 2e-3 and steps[f"{optimizer} restored"] == 1, steps
    # ... and its own initialiser gives the first layer of 4 -> 120 this standard deviation.
    wanted = {"torch": 0.289, "tensorflow": 0.127, "jax": 0.5, "mxnet": 0.040}
    assert facts["first weights"] == pytest.approx(wanted[framework], rel=0.1)


def check_ppo(facts: dict[str, Any], framework: str, execution: str, part: str) -> None:
    assert facts["score"] == 1.0
    assert 1e-4 < facts["divergence"] < 0.1, facts
    assert facts["identical"]
    # CartPole cannot fall in five steps: a reward of 1 for ever, worth 2 at this discount, whenever it is cut off.
    assert facts["cut off"] == pytest.approx([2.0] * 3, abs=0.15)
    if part == "whole":
        assert facts["discounted"] == pytest.approx([0.5, 1.0], abs=0.1)
        assert facts["score by scaled observations"] == 1.0


def check_rainbow(facts: dict[str, Any], framework: str, execution: str, part: str) -> None:
    assert len(facts["probes"]) == (5 if part == "whole" else 0)
    assert max(facts["probes"], default=0.0) < 0.1, facts
    # A run that was stopped and resumed has the same bits as one that was not.
    assert (facts["stopped"], facts["resumed"]) == (True, True)
    assert ("no part" in facts) == (part == "whole")
    assert ("several environments" in facts) == (part == "whole" and execution != "fused")
    assert max(facts.get("no part", 0.0), facts.get("several environments", 0.0)) < 0.1, facts


def check_td3(facts: dict[str, Any], framework: str, execution: str, part: str) -> None:
    # A reward of 1 for ever, whose episodes are cut off, is worth 2 at this discount.
    assert facts["cut off"] == pytest.approx([2.0, 2.0], abs=0.15)
    assert facts["identical"]
    if part == "whole":
        assert facts["target"] > -0.1  # minus the squared distance from it, on average 1.3 of random actions


def check_vpg(facts: dict[str, Any], framework: str, execution: str, part: str) -> None:
    if part == "whole":
        assert facts["discounted"] == pytest.approx([0.5, 1.0], abs=0.1)
        assert facts["better"] == 1.0
    if execution == "fused":
        assert facts["strays"] < 1e-5
        # Continuous actions, of an environment that a user's module has in JAX: 2,000 samples of a standard normal distribution.
        assert facts["noise"]["means"] == pytest.approx([0, 0], abs=0.09)
        assert facts["noise"]["deviations"] == pytest.approx([1, 1], abs=0.07)
        assert facts["continuous"] > -0.1  # minus the squared distance from the target
        assert facts["rewards"] == pytest.approx([0, -1], abs=1e-6)
    else:
        assert facts["target"] > -0.02  # minus the squared distance from it
    assert facts["identical"]


# What holds of the answers of each algorithm.
KNOWN = {"dqn": check_dqn, "ppo": check_ppo, "rainbow": check_rainbow, "td3": check_td3, "vpg": check_vpg}


@pytest.mark.parametrize(("framework", "execution"), [*MODES, ("jax", "fused"), ("numpy", "eager")])
def test_known_answers(worker: Path, framework: str, execution: str) -> None:
    """Of every algorithm, in one process: importing a framework takes seconds."""
    whole = execution == "fused" or framework == "numpy" or (framework, execution) in WHOLE
    part = "whole" if whole else "part"
    names = [name for name in KNOWN if (name, execution) != ("td3", "fused")]
    out = run_program(
        built_environment(framework), worker, "tests.rl.known_program", framework, execution, part, *names
    )
    found = json.loads(out.splitlines()[-1])
    assert list(found) == names
    for name in names:
        KNOWN[name](found[name], framework, execution, part)


@pytest.mark.parametrize(("framework", "execution"), [("torch", "eager"), ("jax", "fused")])
def test_a_resumed_run_of_ppo_is_the_run_that_was_not_stopped(worker: Path, framework: str, execution: str) -> None:
    """To the bit, with normalised observations and rewards. tests/rl/test_on_policy.py has it for NumPy."""
    built, program = built_environment(framework), "tests.rl.ppo_program"
    out = run_program(built, worker, program, framework, execution, JAX_DISABLE_MOST_OPTIMIZATIONS="1")
    assert json.loads(out.splitlines()[-1]) == {"stopped": True, "resumed": True}


AVERAGING = [
    ("torch", "eager", "horovod", "mpi", 2), ("torch", "lazy", "horovod", "gloo", 2), ("torch", "eager", "horovod", "mpi", 4),
    ("tensorflow", "eager", "horovod", "mpi", 2), ("tensorflow", "lazy", "horovod", "gloo", 4),
    ("tensorflow", "xla", "horovod", "mpi", 2),
    ("mxnet", "eager", "horovod", "mpi", 4), ("mxnet", "lazy", "horovod", "gloo", 2),
    ("jax", "eager", "horovod", "mpi", 2), ("jax", "lazy", "horovod", "mpi", 4),
    ("torch", "eager", "native", "", 2), ("torch", "lazy", "native", "", 2),
    ("jax", "eager", "native", "", 2), ("jax", "lazy", "native", "", 4),
]  # fmt: skip
AVERAGED = [
    *[("dqn", *each) for each in AVERAGING],
    *[("vpg", *AVERAGING[number]) for number in (0, 3, 5, 7, 12)],
    *[("td3", "torch", "eager", "native", "", 2), ("td3", "jax", "lazy", "horovod", "mpi", 2)],
    # Their losses return more than the objective, which each way to average passes on in its own manner: each way once.
    *[("ppo", *AVERAGING[number]) for number in (1, 6, 12)],
    *[("rainbow", *AVERAGING[number]) for number in (4, 8, 10)],
]
NAMES = {
    "mpi": "Horovod 0.28.1 over MPI",
    "gloo": "Horovod 0.28.1 over Gloo",
    "jax mpi": "mpi4py over Open MPI",
    "torch ": "DistributedDataParallel over Gloo",
    "jax ": "jax.distributed over Gloo",
}


@pytest.mark.parametrize(
    ("algorithm", "framework", "execution", "parallelism", "transport", "ranks"),
    AVERAGED,
)
def test_ranks_with_parts_of_a_batch_are_one_with_the_whole(
    worker: Path,
    tmp_path: Path,
    algorithm: str,
    framework: str,
    execution: str,
    parallelism: str,
    transport: str,
    ranks: int,
) -> None:
    built = built_environment(framework, horovod=parallelism == "horovod")
    variables = {"HOROVOD_CONTROLLER": "gloo"} if transport == "gloo" else {}
    program = (
        "import sys; from hpcrl.run.ranks import start_ranks; "
        f"command = [sys.executable, '-m', 'tests.rl.averaging_program', *{[algorithm, framework, execution, parallelism, str(tmp_path)]}]; "
        f"sys.exit(start_ranks(command, {ranks}, {framework!r}, {parallelism!r}, 'test'))"
    )
    start = tmp_path / "start.py"
    start.write_text(program)
    environment = {
        **os.environ,
        **SHARED_CACHE,
        "PYTHONPATH": f"{worker}:{ROOT}",
        "OMP_NUM_THREADS": "1",
        "TF_CPP_MIN_LOG_LEVEL": "3",
    }
    done = subprocess.run(
        [built.path / "bin/python", start], env=environment | variables, capture_output=True, text=True, timeout=900, check=False
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    found = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(ranks)]
    for facts in found:
        assert facts["strays"][0] < ONE_UPDATE, facts
        assert facts["strays"][4] < 1e-6, facts
        assert facts["aux"] <= AUX[algorithm], facts
        assert (facts["somebody"], facts["nobody"]) == (True, False), facts
        assert (NAMES.get(f"{framework} {transport}") or NAMES[transport]) in facts["name"], facts
        assert ("nothing" in facts["compiled"]) == (execution == "eager"), facts


@pytest.mark.parametrize(
    ("framework", "execution", "device"),
    [
        ("torch", "eager", "meta"),
        ("mxnet", "eager", "cpu(1)"),
        ("mxnet", "lazy", "cpu(1)"),
        ("jax", "eager", "cpu:1"),
        ("jax", "lazy", "cpu:1"),
    ],
)
def test_all_of_the_work_is_on_the_device_that_was_given(
    worker: Path, framework: str, execution: str, device: str
) -> None:
    """A stand-in for a GPU; TensorFlow is not told a device, and places by itself."""
    out = run_program(built_environment(framework), worker, "tests.rl.placement_program", framework, execution)
    assert json.loads(out.splitlines()[-1]) == [device]


@pytest.mark.parametrize(("framework", "execution"), MODES)
def test_computing_is_no_part_of_communicating(worker: Path, framework: str, execution: str) -> None:
    """With a collective that sends nothing. Medians of single updates: a busy machine interrupts some of them."""
    out = run_program(built_environment(framework), worker, "tests.rl.communicate_program", framework, execution)
    found = json.loads(out.splitlines()[-1])
    assert 0 < found["communicate"] < 0.02 * found["update"]


@pytest.mark.parametrize(("name", "episodes", "ends"), [("CartPole-v1", 50, 50), ("MountainCar-v0", 20, 10)])
def test_jax_s_environments_are_gymnasium_s(worker: Path, name: str, episodes: int, ends: int) -> None:
    out = run_program(built_environment("jax"), worker, "tests.rl.worlds_program", name, str(episodes))
    facts = json.loads(out)
    assert tuple(facts["known"]) == frameworks()["jax"].environments
    assert facts["largest"] < 1e-4
    assert facts["ends"] == ends
    assert max(facts["first"].values()) < 5e-3


def test_environments_that_are_compiled_step_as_gymnasium_s(worker: Path) -> None:
    facts = json.loads(run_program(built_environment("jax"), worker, "tests.rl.compiled_program"))
    assert facts["apart"] < 1e-4
    assert facts["cut off"] == [False, True] and facts["fallen"] == [True, True]
    assert facts["starts differ"] and facts["seeds differ"] and facts["same seed"]


@pytest.mark.parametrize("how", [(), ("asynchronously",)])
def test_inputs_that_share_memory_with_numpy_s_arrays_change_nothing(worker: Path, how: tuple[str, ...]) -> None:
    facts = json.loads(run_program(built_environment("jax"), worker, "tests.rl.sharing_program", *how).splitlines()[-1])
    assert not facts.pop("shares if told to dispatch asynchronously")
    assert facts.pop("type of whole numbers") == "int32"
    assert facts == dict.fromkeys(facts, True)


@pytest.mark.parametrize(
    "first",
    [
        "framework_weights('jax', made, 0)",
        "make_collective('jax', 'native', Group(0, 1, 0, (f'127.0.0.1:{free_port()}',)), PhaseClock())",
        "learner_of('jax', 'eager', made, first_weights(made))",
    ],
)
def test_jax_computes_at_once_whatever_is_made_first(worker: Path, first: str) -> None:
    """JAX settles how it dispatches when it first looks at its devices: later, phases would tell of nothing but waiting."""
    code = f"""
import socket
from hpcrl.rl.distributed.group import Group
from hpcrl.rl.frameworks import framework_weights, make_collective
from hpcrl.telemetry.phases import PhaseClock
from tests.rl.builders import dqn, first_weights, learner_of
def free_port():
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]
made = dqn()
kept = {first}
import jax, jax.numpy as jnp
product = jax.jit(lambda matrix: matrix @ matrix @ matrix @ matrix)
matrix = jnp.ones((1200, 1200))
product(matrix).block_until_ready()
print([product(matrix).is_ready() for _ in range(5)])
"""
    built = built_environment("jax")
    environment = {**os.environ, "PYTHONPATH": f"{worker}:{ROOT}", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [built.path / "bin/python", "-c", code], env=environment, capture_output=True, text=True, timeout=900, check=False
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.split("\n")[-2] == str([True] * 5), done.stdout
