"""Milliseconds of CPU time of one update of TD3, and of one epoch of VPG on HalfCheetah, on one core, beside CleanRL and the form of Spinning Up.

python -m benchmarks.update_speed [td3 | vpg] [CORE]

What is measured, and how, is said in update_program.py. CleanRL's lines are run unchanged, from the scripts of its last release. Spinning Up is
in no package index: a stand-in of its form is (spinning_up.py). The floor is the time of an update's matrix products alone, in NumPy's BLAS or
in one program of XLA, whichever is faster. Between both is what hpcrl's updates compute in JAX, forty of them in one program. Programs run three times, one after the other in turn, and the best reading counts.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from benchmarks.training_speed import CLEANRL, ROUNDS, cleanrl_scripts, output_of, python_of
from hpcrl.formats.worker import worker_zip

ROOT = Path(__file__).parents[1]
BATCHES = (100, 256)
MODES = (("torch", "eager"), ("torch", "lazy"), ("jax", "lazy"))
SCRIPTS = ("td3_continuous_action.py", "td3_continuous_action_jax.py")
STAND_IN = "in Spinning Up's form"
ARITHMETIC = "what hpcrl's updates compute, jax"
FLOORS = {library: f"matrix products alone, {library}" for library in ("numpy", "jax")}


def main(algorithm: str = "", core: int | None = None) -> None:
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0)) if core is None else core})
    with tempfile.TemporaryDirectory() as place:
        directory = Path(place)
        (directory / "worker.zip").write_bytes(worker_zip())
        if algorithm in ("", "td3"):
            scripts = cleanrl_scripts(directory)
            for batch in BATCHES:
                _print_updates(batch, _best(_updates(scripts, str(batch)), directory))
        if algorithm in ("", "vpg"):
            _print_epochs(_best(_epochs(), directory))


def _updates(scripts: Path, batch: str) -> dict[str, list[str]]:
    """Return the programs of one update: what each is, and its interpreter and arguments."""
    programs = {
        f"{CLEANRL}, {script}": [python_of("peers"), "cleanrl", str(scripts / script), batch] for script in SCRIPTS
    }
    programs[STAND_IN] = [python_of("torch"), "spinning-up", batch]
    for framework, execution in MODES:
        programs[f"hpcrl, {framework} {execution}"] = [python_of(framework), "td3", framework, execution, batch]
    programs[ARITHMETIC] = [python_of("jax"), "arithmetic", batch]
    for library, name in FLOORS.items():
        programs[name] = [python_of("jax"), "products", library, batch]
    return programs


def _epochs() -> dict[str, list[str]]:
    programs = {STAND_IN: [python_of("torch"), "spinning-up-vpg"]}
    for framework, execution in MODES:
        programs[f"hpcrl, {framework} {execution}"] = [python_of(framework), "vpg", framework, execution]
    return programs


def _best(programs: Mapping[str, list[str]], directory: Path) -> dict[str, float]:
    """Run programs in turn, and return the least milliseconds of each."""
    best = dict.fromkeys(programs, float("inf"))
    for _ in range(ROUNDS):
        for name, (python, *arguments) in programs.items():
            words = [python, "-m", "benchmarks.update_program", *arguments]
            (printed,) = (line for line in output_of(words, directory, ROOT).splitlines() if line.startswith("MS:"))
            best[name] = min(best[name], float(printed.split()[1]))
    return best


def _print_updates(batch: int, best: dict[str, float]) -> None:
    floor = min(best[name] for name in FLOORS.values())
    beside = {script: best[f"{CLEANRL}, {script}"] for script in SCRIPTS} | {STAND_IN: best[STAND_IN]}
    beside |= {"what they compute": best[ARITHMETIC], "floor": floor}
    _print_table(f"TD3, one update, batch {batch}, least of {ROUNDS} runs on one core", best, beside)


def _print_epochs(best: dict[str, float]) -> None:
    _print_table(
        f"VPG, one epoch of 4,000 steps of HalfCheetah-v5, least of {ROUNDS} runs on one core",
        best,
        {STAND_IN: best[STAND_IN]},
    )


def _print_table(title: str, best: dict[str, float], beside: dict[str, float]) -> None:
    """Print milliseconds, and their ratios to those of others."""
    print(title)
    print(f"  {'':<48} {'ms':>8}" + "".join(f"  / {name}" for name in beside))
    for name, value in best.items():
        print(
            f"  {name:<48} {value:8.3f}"
            + "".join(f"  {value / each:{len(other) + 2}.2f}" for other, each in beside.items())
        )
    print(flush=True)


if __name__ == "__main__":
    chosen = sys.argv[1] if len(sys.argv) > 1 else ""
    main(chosen, int(sys.argv[2]) if len(sys.argv) > 2 else None)
