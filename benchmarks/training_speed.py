"""Environment steps per second on one core, beside CleanRL, SB3, SBX, TorchRL, Tianshou and rejax.

python -m benchmarks.training_speed [dqn | ppo | rainbow | td3] [CORE] [--only WORDS]... [--rounds N]

All are trained by the peers' settings: CleanRL's, and for rainbow those of Tianshou's test. dqn, ppo and rainbow on CartPole-v1, td3 on HalfCheetah
(version 5, with the physics of the peers' version 4). Each is run three times (or as often as --rounds says), one after the other in turn, and its best run counts: other work on
the machine only slows. --only runs those alone whose names contain the words. Time counts from step 12,288 on (dqn: 12,300, td3: 11,000), so that start-up and compilation are left out on every side. Environments
are built where they are missing, and CleanRL's scripts are taken from its last release, unchanged (its metadata ask for an older Python, on which
nothing depends). The table names the version of Gymnasium that each of them steps; hpcrl also runs on that of CleanRL and SB3.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from benchmarks.training_program import TASKS
from hpcrl.catalogue.fields import names
from hpcrl.catalogue.registry import algorithms
from hpcrl.environments.build import build_all
from hpcrl.formats.worker import worker_zip
from hpcrl.plan.environments import render_environment
from hpcrl.spec.library import Library
from hpcrl.spec.rendering import Renderer

HERE = Path(__file__).parent
PROGRAM = str(HERE / "training_program.py")
ROUNDS = 3
CLEANRL = "cleanrl==1.2.0"
OURS = [
    ("numpy", "eager"), ("torch", "eager"), ("torch", "lazy"), ("tensorflow", "lazy"), ("tensorflow", "xla"),
    ("mxnet", "lazy"), ("jax", "lazy"), ("jax", "fused"),
]  # fmt: skip
NO_MUJOCO = ("mxnet",)  # frameworks whose software environment has an older NumPy than MuJoCo needs
# At which step CleanRL's scripts first print their steps per second since their start, and at which intervals.
PRINTS = {
    "dqn.py": (10_100, 100), "dqn_jax.py": (10_100, 100), "ppo.py": (1_024, 1_024),
    "td3_continuous_action.py": (10_100, 100), "td3_continuous_action_jax.py": (10_100, 100),
}  # fmt: skip
_ARGUMENTS = {
    "dqn": [], "ppo": ["--num-envs", "8"],
    "td3": ["--env-id", "HalfCheetah-v4", "--learning-starts", "10000", "--buffer-size", "100000"],
}  # fmt: skip
# The other peers of each algorithm: their names, their environments, and how training_program.py knows them.
_PEERS = {
    "dqn": [("Stable-Baselines3 2.3.2", "peers", "sb3"), ("rejax 0.1.3, 10 environments", "rejax", "rejax")],
    "ppo": [
        ("Stable-Baselines3 2.3.2", "peers", "sb3"), ("TorchRL 0.14.1", "torchrl", "torchrl"),
        ("rejax 0.1.3", "rejax", "rejax"),
    ],
    "rainbow": [("Tianshou 2.0.1", "tianshou", "tianshou")],
    "td3": [("Stable-Baselines3 2.3.2", "peers", "sb3"), ("SBX 0.28.0", "sbx", "sbx")],
}  # fmt: skip


class Contender(NamedTuple):
    """What is run, and what it steps: a package of its environment, or none where the environment is a part of the program."""

    words: list[str]
    steps: str | None = "gymnasium"

    def stepped(self) -> str:
        """Return package and version of the environments that it steps."""
        if self.steps is None:
            return "own, in JAX"
        code = "import sys; from importlib.metadata import version; print(version(sys.argv[1]))"
        words = [self.words[0], "-c", code, self.steps]
        found = subprocess.run(words, check=True, capture_output=True, text=True).stdout.strip()
        return f"{'' if self.steps == 'gymnasium' else self.steps + ' '}{found}"


def main(algorithm: str = "dqn", core: int | None = None, only: Sequence[str] = (), rounds: int = ROUNDS) -> None:
    core = min(os.sched_getaffinity(0)) if core is None else core
    os.sched_setaffinity(0, {core})
    with tempfile.TemporaryDirectory() as place:
        directory = Path(place)
        (directory / "worker.zip").write_bytes(worker_zip())
        contenders = _peers(algorithm, directory) | _ours(algorithm)
        contenders = {name: one for name, one in contenders.items() if not only or any(words in name for words in only)}
        best = dict.fromkeys(contenders, 0.0)
        for _ in range(rounds):
            for name, contender in contenders.items():
                best[name] = max(best[name], speed(contender.words, directory, TASKS[algorithm].warm))
    peers_of = [name for name in best if not name.startswith("hpcrl")]
    task = TASKS[algorithm]
    print(
        f"{algorithm} on {task.environment} by the peers' settings, {task.steps:,} steps, one core, best of {rounds} runs"
    )
    heads = "".join(f" {'x ' + name.split(', ')[-1]:>15.15}" for name in peers_of)
    print(f"  {'':<45} {'gymnasium':>12} {'steps/s':>8}{heads}")
    for name, rate in best.items():
        ratios = "".join(f" {rate / best[peer]:15.2f}" for peer in peers_of)
        print(f"  {name:<45} {contenders[name].stepped():>12} {rate:8.0f}{ratios}", flush=True)


def _peers(algorithm: str, directory: Path) -> dict[str, Contender]:
    contenders: dict[str, Contender] = {}
    if algorithm in _ARGUMENTS:
        scripts, steps = cleanrl_scripts(directory), str(TASKS[algorithm].steps)
        for script in (name for name in PRINTS if name.startswith(algorithm)):
            through = [str(HERE / "old_gym.py")] if algorithm == "td3" else []
            words = [
                python_of("peers"),
                *through,
                str(scripts / script),
                "--total-timesteps",
                steps,
                *_ARGUMENTS[algorithm],
            ]
            device = [] if "jax" in script else ["--cuda", "false"]
            package = "gymnasium" if "import gymnasium" in (scripts / script).read_text() else "gym"
            contenders[f"CleanRL 1.2.0, {script}"] = Contender([*words, *device], package)
    for name, environment, program in _PEERS[algorithm]:
        words = [python_of(environment), PROGRAM, program, algorithm]
        contenders[name] = Contender(words, "gymnax" if program == "rejax" else "gymnasium")
    return contenders


def _ours(algorithm: str) -> dict[str, Contender]:
    contenders = {}
    settings = algorithms()[algorithm].settings
    for framework, execution in OURS:
        if execution == "fused" and not algorithms()[algorithm].fused:
            continue
        if TASKS[algorithm].environment.startswith("HalfCheetah") and framework in NO_MUJOCO:
            continue
        alone = execution == "fused" or framework == "numpy" or "acting" not in names(settings)
        for acting in ("framework",) if alone else ("framework", "numpy"):
            name = f"hpcrl, {framework} {execution}" + (", acting in NumPy" if acting == "numpy" else "")
            words = [python_of(framework), PROGRAM, framework, execution, acting, algorithm]
            contenders[name] = Contender(words, None if execution == "fused" else "gymnasium")
    if TASKS[algorithm].environment == "CartPole-v1":
        environment = _PEERS[algorithm][0][1]
        words = [python_of(environment), PROGRAM, "torch", "eager", "framework", algorithm]
        contenders["hpcrl, torch eager, on the peers' packages"] = Contender(words)
    return contenders


def python_of(name: str) -> str:
    """Return the interpreter of one of the packaged environments, or of the peers', built if need be."""
    library = Library([HERE])
    profile = library.cluster("workstation")
    environment = render_environment(
        Renderer(library), profile, library.environment(name), "cpu", False, library.hashes(name)
    )
    site = profile.environments.model_dump(mode="json", exclude_none=True)
    (built,) = build_all([environment], site, lambda key, text: print(f"{key}: {text}", file=sys.stderr))
    return str(built.path / "bin/python")


def cleanrl_scripts(directory: Path) -> Path:
    """Fetch CleanRL's wheel and return the directory of its scripts."""
    words = ["pip", "download", "--quiet", "--no-deps", "--ignore-requires-python", "--dest", str(directory), CLEANRL]
    subprocess.run([sys.executable, "-m", *words], check=True)
    (wheel,) = directory.glob("cleanrl-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(directory)
    return directory / "cleanrl"


def one_thread(path: str) -> dict[str, str]:
    """Return the variables of a process with one thread that imports from `path`."""
    threads = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS")
    own = {"PYTHONPATH": path, "TF_CPP_MIN_LOG_LEVEL": "3", "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false"}
    return os.environ | dict.fromkeys(threads, "1") | own


def speed(words: list[str], directory: Path, warm: int) -> float:
    """Run one contender and return its steps per second from the step `warm` on."""
    printed = output_of(words, directory)
    rates = [float(line.split()[1]) for line in printed.splitlines() if line.startswith("SPS:")]
    prints = next((PRINTS[name] for name in (Path(word).name for word in words) if name in PRINTS), None)
    if prints is None:
        return rates[-1]
    # Since the script's start: the seconds until a step are the step over the rate.
    first, every = prints
    seconds = {first + every * number: (first + every * number) / rate for number, rate in enumerate(rates)}
    begin, end = min(step for step in seconds if step >= warm), max(seconds)
    return (end - begin) / (seconds[end] - seconds[begin])


def output_of(words: list[str], directory: Path, *paths: Path) -> str:
    """Run a program with the worker of a directory and further `paths`, one thread in every library, and return what it prints."""
    found = os.pathsep.join(map(str, (directory / "worker.zip", *paths)))
    environment = one_thread(found)
    done = subprocess.run(words, cwd=directory, env=environment, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(words)} failed:\n{done.stderr[-2000:]}")
    return done.stdout


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("algorithm", choices=sorted(TASKS), nargs="?", default="dqn")
    parser.add_argument("--only", action="append", default=[], help="a part of the names of those that run")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="how often each runs")
    parser.add_argument("core", type=int, nargs="?", help="the core that all run on; by default the first one")
    options = parser.parse_args()
    main(options.algorithm, options.core, options.only, options.rounds)
