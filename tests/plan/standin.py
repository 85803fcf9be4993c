"""A plan whose scripts can be run, with a stand-in for the Python of its cells' environment."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from hpcrl.formats.plan import read_plan
from tests.builders import command_study, planned

# Appends its arguments to a log and ends with the code that stands in the file `codes` for its slot. With `block` it
# first says that it runs, then waits for a signal.
_PYTHON = """#!{python}
import os, signal, sys
from pathlib import Path
base = Path({base!r})
signals = {{signal.SIGTERM, signal.SIGUSR2}}
signal.pthread_sigmask(signal.SIG_BLOCK, signals)
slot = sys.argv[sys.argv.index("--slot") + 1] if "--slot" in sys.argv else "-"
caught = ""
if (base / "block").exists():
    (base / "runs").open("w").close()
    caught = " " + signal.sigwait(signals).name
start = os.environ["HPCRL_START"]
with (base / "log").open("a") as log:
    log.write(" ".join(sys.argv[1:]) + caught + "\\n")
with (base / "seen").open("a") as log:
    log.write(start + "\\t" + os.environ.get("HPCRL_ENVIRONMENTS", "") + "\\n")
with (base / "chosen").open("a") as log:
    log.write(Path(os.environ["HPCRL_ENV"]).name + "\\n")
codes = (base / "codes").read_text().split() if (base / "codes").exists() else []
sys.exit(int(codes[int(slot)]) if slot != "-" and codes else 0)
"""


def script_of(
    base: Path, cells_per_task: int, seeds: int = 3, cluster: str = "workstation"
) -> tuple[Path, str, dict[str, str]]:
    """Plan, build the stand-in, and return the plan, its first script and the variables to run it with."""
    plan = planned(base / "p", command_study(["true"], seeds=seeds), cluster, cells_per_task=cells_per_task)
    job = read_plan(plan).jobs[0]
    return plan, job.script, stand_in(base, [str(job.environment)])


def stand_in(base: Path, environments: Sequence[str]) -> dict[str, str]:
    """Build the stand-in for each of the environments, and return the variables to run a script with."""
    root = base / "environments with a space"
    for key in environments:
        environment = root / key
        (environment / "bin").mkdir(parents=True)
        (environment / "hpcrl-environment.json").touch()
        python = environment / "bin" / "python"
        python.write_text(_PYTHON.format(python=sys.executable, base=str(base)))
        python.chmod(0o755)
    return {"PATH": os.environ["PATH"], "HPCRL_ENVIRONMENTS": str(root), "HOSTNAME": "here"}


def log_of(base: Path) -> list[str]:
    return (base / "log").read_text().splitlines()
