"""Environment steps per second of DQN on CartPole-v1 by CleanRL's settings, on one core, beside CleanRL, SB3 and rejax.

python -m benchmarks.training_speed

Each is run three times, one after the other in turn, and its best run counts: other work on the machine only slows.
Start-up and compilation are left out on every side. Environments are built where they are missing, and CleanRL's
scripts are taken from its last release, unchanged (its metadata ask for an older Python, on which nothing depends).
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from hpcrl.environments.build import build_all
from hpcrl.formats.worker import worker_zip
from hpcrl.plan.environments import render_environment
from hpcrl.spec.library import Library
from hpcrl.spec.rendering import Renderer

HERE = Path(__file__).parent
ROUNDS = 3
STEPS = 50_000
CLEANRL = "cleanrl==1.2.0"
OURS = [
    ("numpy", "eager"), ("torch", "eager"), ("torch", "lazy"), ("tensorflow", "lazy"), ("tensorflow", "xla"),
    ("mxnet", "lazy"), ("jax", "lazy"), ("jax", "fused"),
]  # fmt: skip


def main() -> None:
    core = min(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {core})
    with tempfile.TemporaryDirectory() as place:
        directory = Path(place)
        (directory / "worker.zip").write_bytes(worker_zip())
        scripts = _cleanrl(directory)
        peers = python_of("peers")
        steps = ["--total-timesteps", str(STEPS)]
        contenders: dict[str, list[str]] = {
            "CleanRL 1.2.0, dqn.py": [peers, str(scripts / "dqn.py"), *steps, "--cuda", "false"],
            "CleanRL 1.2.0, dqn_jax.py": [peers, str(scripts / "dqn_jax.py"), *steps],
            "Stable-Baselines3 2.3.2": [peers, str(HERE / "training_program.py"), "sb3"],
            "rejax 0.1.3, 10 environments": [python_of("rejax"), str(HERE / "training_program.py"), "rejax"],
        }
        for framework, execution in OURS:
            for acting in ("framework",) if execution == "fused" or framework == "numpy" else ("framework", "numpy"):
                name = f"hpcrl, {framework} {execution}" + (", acting in NumPy" if acting == "numpy" else "")
                program = [str(HERE / "training_program.py"), framework, execution, acting]
                contenders[name] = [python_of(framework), *program]
        best = dict.fromkeys(contenders, 0.0)
        for _ in range(ROUNDS):
            for name, words in contenders.items():
                best[name] = max(best[name], speed(words, directory))
    torch, jax = best["CleanRL 1.2.0, dqn.py"], best["CleanRL 1.2.0, dqn_jax.py"]
    print(f"DQN on CartPole-v1 by CleanRL's settings, {STEPS:,} steps, one core, best of {ROUNDS} runs")
    print(f"  {'':<40} {'steps/s':>8} {'x dqn.py':>9} {'x dqn_jax.py':>13}")
    for name, steps in best.items():
        print(f"  {name:<40} {steps:8.0f} {steps / torch:9.2f} {steps / jax:13.2f}")


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


def _cleanrl(directory: Path) -> Path:
    """Fetch CleanRL's wheel and return the directory of its scripts."""
    words = ["pip", "download", "--quiet", "--no-deps", "--ignore-requires-python", "--dest", str(directory), CLEANRL]
    subprocess.run([sys.executable, "-m", *words], check=True)
    (wheel,) = directory.glob("cleanrl-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(directory)
    return directory / "cleanrl"


def speed(words: list[str], directory: Path) -> float:
    """Run one contender and return the last steps per second that it prints."""
    environment = os.environ | {"PYTHONPATH": str(directory / "worker.zip"), "TF_CPP_MIN_LOG_LEVEL": "3"}
    environment |= dict.fromkeys(
        ["OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS"], "1"
    )
    environment["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false"
    done = subprocess.run(words, cwd=directory, env=environment, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(words)} failed:\n{done.stderr[-2000:]}")
    return float([line for line in done.stdout.splitlines() if line.startswith("SPS:")][-1].split()[1])


if __name__ == "__main__":
    main()
