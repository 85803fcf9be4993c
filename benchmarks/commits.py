"""Environment steps per second of DQN in this working tree beside those of an older commit, in turn, on one core.

python -m benchmarks.commits COMMIT [FRAMEWORK EXECUTION]

Each commit runs its own code and its own benchmarks/training_program.py in the same environment. The ratio is that of
the best runs: other work on the machine only slows. Two copies of one commit show what the machine's noise is.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.training_speed import python_of, speed
from hpcrl.catalogue.registry import frameworks

ROOT = Path(__file__).parents[1]
ROUNDS = 5
# Steps of a run, those without updates included, so that a run takes seconds.
STEPS = {("jax", "eager"): 2_000, ("tensorflow", "eager"): 12_000}
PROGRAM = """
import sys
from time import perf_counter
sys.path.append(sys.argv[1])
from benchmarks import training_program as program
framework, execution, steps = sys.argv[2], sys.argv[3], int(sys.argv[4])
warm = steps // 4
program.STEPS = steps
program.SETTINGS |= {"total_steps": steps, "learning_starts": steps // 5, "evaluation_interval": warm}
if hasattr(program, "TASKS"):
    program.TASKS["dqn"] = program.Task("CartPole-v1", steps, warm, program.SETTINGS)
    rate = program.ours(framework, execution, "framework")
else:  # older: its rate would be that of all steps, the first ones without updates too
    if execution != "fused":  # whose calls end at evaluations
        program.SETTINGS["evaluation_interval"] = steps
    times = {}
    class Watch(program.Silent):
        def progress(self, step, total):
            times.setdefault(step, perf_counter())
    program.Silent = Watch
    program.ours(framework, execution, "framework")
    first, last = min(step for step in times if step >= warm), max(times)
    rate = (last - first) / (times[last] - times[first])
print("SPS:", rate)
"""


def main(commit: str, *only: str) -> None:
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    with tempfile.TemporaryDirectory() as place:
        older = Path(place) / "older"
        subprocess.run(["git", "worktree", "add", "--quiet", "--detach", older, commit], cwd=ROOT, check=True)
        try:
            trees = {Path(place) / "a": ROOT, Path(place) / "b": older}
            for directory, tree in trees.items():
                _write_worker(tree, directory)
            print(f"DQN by CleanRL's settings, steps/s of the best of {ROUNDS} runs: this tree, {commit}, ratio")
            for framework, entry in frameworks().items():
                for execution in entry.modes:
                    if not only or (framework, execution) == only:
                        _compare(framework, execution, trees)
        finally:
            subprocess.run(["git", "worktree", "remove", "--force", older], cwd=ROOT, check=True)


def _compare(framework: str, execution: str, trees: dict[Path, Path]) -> None:
    steps = str(STEPS.get((framework, execution), 50_000))
    best = dict.fromkeys(trees, 0.0)
    for turn in range(ROUNDS):
        # Each tree comes first in every second round.
        for directory in list(trees)[:: 1 if turn % 2 else -1]:
            words = [python_of(framework), "-c", PROGRAM, str(trees[directory]), framework, execution, steps]
            best[directory] = max(best[directory], speed(words, directory, int(steps) // 4))
    new, old = best.values()
    print(f"  {framework + ' ' + execution:<18} {new:8.0f} {old:8.0f} {new / old:7.3f}", flush=True)


def _write_worker(tree: Path, directory: Path) -> None:
    """Write the worker that a cell of this tree would run."""
    directory.mkdir()
    code = "import sys; from hpcrl.formats.worker import worker_zip; sys.stdout.buffer.write(worker_zip())"
    environment = os.environ | {"PYTHONPATH": str(tree)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, cwd=tree, check=True, capture_output=True)
    (directory / "worker.zip").write_bytes(done.stdout)


if __name__ == "__main__":
    main(*sys.argv[1:])
