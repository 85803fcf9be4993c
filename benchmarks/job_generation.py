"""10,000 cells from matrix to scripts: hpcrl plan, signac-flow `submit --pretend`, and a bare Jinja loop.

    python -m benchmarks.job_generation

hpcrl packs cells of equal resources into arrays, so two cases: all cells alike (the usual study), and every cell with
a memory limit of its own, which forces 10,000 scripts as the peers write them. signac-flow needs a scheduler to ask
for its queue: a private Slurm is started for it. Its 10,000 jobs are initialised beforehand, unmeasured.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path

from benchmarks.measure import cpu_seconds

CELLS = 10_000
_JINJA = """
import sys, pathlib, jinja2
template = jinja2.Environment().from_string(pathlib.Path(sys.argv[1]).read_text())
out = pathlib.Path(sys.argv[2]); out.mkdir(exist_ok=True)
for index in range({cells}):
    (out / f"{{index}}.sh").write_text(template.render(name=f"cell-{{index}}", memory=4096 + index, partition="htc", time="01:00:00"))
"""
_TEMPLATE = """#!/bin/bash
#SBATCH --job-name={{ name }}
#SBATCH --partition={{ partition }}
#SBATCH --time={{ time }}
#SBATCH --mem={{ memory }}M
exec srun --ntasks=1 python -m train --cell {{ name }}
"""
_FLOW = """
import flow
from flow.environment import DefaultSlurmEnvironment
class Project(flow.FlowProject):
    pass
@Project.operation
def train(job):
    pass
if __name__ == "__main__":
    Project(environment=DefaultSlurmEnvironment).main()
"""
_STUDY = """
name: big
title: {cells} cells
workload: {{command: [train, "{{seed}}"]}}
axes: {{{axis}}}
seeds: {seeds}
chain: parallel
resources: {{memory: 4G, time: 01:00:00}}
"""


def run(directory: Path) -> dict[str, float]:
    """Return CPU seconds by contender."""
    found: dict[str, float] = {}
    alike = directory / "alike.yaml"
    alike.write_text(
        _STUDY.format(cells=CELLS, axis="framework: [a, b, c, d], execution: [eager, lazy]", seeds=CELLS // 8).replace(
            "framework", "kind"
        )
    )
    apart = directory / "apart.yaml"
    memories = ", ".join(f"{4096 + index}M" for index in range(CELLS))
    apart.write_text(_STUDY.format(cells=CELLS, axis=f"memory: [{memories}]", seeds=1))
    for name, study in (("hpcrl plan, cells alike (1 array)", alike), ("hpcrl plan, 10,000 scripts", apart)):
        plan = directory / "plan"

        def once(study: Path = study, plan: Path = plan) -> float:
            shutil.rmtree(plan, ignore_errors=True)
            command = [
                sys.executable,
                "-m",
                "hpcrl",
                "plan",
                "--cluster",
                "sol",
                "--study",
                str(study),
                "-o",
                str(plan),
            ]
            return cpu_seconds(command, repeats=1)

        found[name] = min(once() for _ in range(3))
    template = directory / "t.j2"
    template.write_text(_TEMPLATE)
    found["bare Jinja loop"] = cpu_seconds(
        [sys.executable, "-c", _JINJA.format(cells=CELLS), str(template), str(directory / "out")]
    )
    found["signac-flow submit --pretend"] = _signac_flow(directory / "flow")
    return found


def _signac_flow(directory: Path) -> float:
    import signac

    from hpcrl.private_slurm.virtual import VirtualSlurm
    from hpcrl.spec.library import Library

    directory.mkdir()
    project = signac.init_project(path=str(directory))
    for index in range(CELLS):
        project.open_job({"seed": index}).init()
    (directory / "project.py").write_text(_FLOW)
    slurm = VirtualSlurm(Path(tempfile.mkdtemp(prefix="hb-", dir="/tmp")))
    slurm.up(Library().cluster("cirrus"))
    try:
        return cpu_seconds(
            [sys.executable, "project.py", "submit", "--pretend"], cwd=directory, env=slurm.environment(), repeats=2
        )
    finally:
        slurm.down()
        shutil.rmtree(slurm.directory)


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        found = run(Path(name))
    reference = found["hpcrl plan, 10,000 scripts"]
    print(f"{CELLS:,} cells, CPU seconds of the whole process (least of several runs)")
    for contender, seconds in found.items():
        print(f"  {contender:<36} {seconds:6.2f} s   {seconds / reference:5.2f} x hpcrl's 10,000 scripts")


if __name__ == "__main__":
    main()
