"""A report of 10,000 cells: how long it takes to write, how large it is, how soon Chromium shows and draws it.

    python -m benchmarks.report [CELLS] [--keep DIRECTORY]

2,000 configurations of five seeds: two frameworks, ten learning rates, twenty batch sizes, five numbers of cores. Needs
chromium and chromedriver, as `make test` installs them. `--keep` leaves the dataset and the report where they can be looked at.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

RATES = [round(1e-4 * 2**number, 6) for number in range(10)]
_FIRST_PAINT = "const [p] = performance.getEntriesByName('first-contentful-paint'); return p ? p.startTime : 0"
_LOADED = "const [t] = performance.getEntriesByType('navigation'); return t.loadEventEnd - t.startTime"
_DRAW = """
const done = arguments[0], start = performance.now();
Promise.all(Object.keys(specs).map(id => draw(id))).then(() => done([performance.now() - start, Object.keys(specs).length]));
"""
_SORT = """
const start = performance.now();
document.querySelectorAll(".comparison th button")[3].click();
document.querySelector("form.tools input").value = "pytorch 0.0016";
document.querySelector("form.tools").dispatchEvent(new Event("input"));
return performance.now() - start
"""


def write_dataset(directory: Path, cells: int = 10_000) -> Path:
    """Plan a study of so many cells, write a record for each, and collect them; return the dataset."""
    from hpcrl.collect.merge import collect
    from tests.builders import cells_of, dqn_study, planned, write_record
    from tests.collect.gathering import no_slurm

    sizes = [2 ** (number // 2 + 3) + (number % 2) * 2 ** (number // 2 + 2) for number in range(20)]
    share = max(1, round(20 * cells / 10_000))
    axes = {
        "framework": ["torch", "jax"],
        "learning_rate": RATES,
        "batch_size": sizes[:share],
        "cpus": [1, 2, 4, 8, 16],
    }
    plan = planned(
        directory / "plan", dqn_study(name="large", title="A large study", axes=axes, seeds=5, goal=900), "sol"
    )
    draw = np.random.default_rng(0)
    header = {"hardware": {"cpu": "C", "threads": 16, "memory": 1024**3, "gpus": [], "kernel": "6"}}
    for number, cell in enumerate(cells_of(plan)):
        config, cores = cell["config"], cell["resources"]["cpus"]
        distance = abs(np.log2(config["learning_rate"] / 1.6e-3)) + 0.3 * abs(np.log2(config["batch_size"] / 128))
        score = float(np.clip(1000 - 130 * distance + draw.normal(0, 60), 9, 1000))
        seconds = (20.0 if config["framework"] == "torch" else 8.0) * (config["batch_size"] / 64) ** 0.4 / cores**0.5
        training = float(seconds * draw.lognormal(0, 0.05))
        if number % 997 == 0:
            write_record(
                plan, cell, header=header, outcome="failed", reason="out of luck", final_score=None, training_time=None
            )
            continue
        write_record(
            plan, cell, header=header, returns=tuple(np.linspace(9, score, 5)), final_score=score, training_time=training,
            wall_time=training + 3, compile_time=1.0, steps=50_000, goal_step=30_000 if score > 900 else None,
            goal_time=training / 2 if score > 900 else None,
        )  # fmt: skip
    collect([plan], directory / "dataset", no_slurm())
    return directory / "dataset"


def _cpu(browser: Any) -> float:
    """Return the CPU seconds that the page's process has taken: on a busy machine the clock says less."""
    browser.execute_cdp_cmd("Performance.enable", {})
    metrics = browser.execute_cdp_cmd("Performance.getMetrics", {})["metrics"]
    return float(next(each["value"] for each in metrics if each["name"] == "ProcessTime"))


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("cells", type=int, nargs="?", default=10_000)
    parser.add_argument("--keep", type=Path)
    options = parser.parse_args(arguments)
    from tests.report.browser import found, opened, until

    if not found():
        print("the report: no chromium and chromedriver here")
        return
    with tempfile.TemporaryDirectory() as temporary:
        directory = options.keep or Path(temporary)
        directory.mkdir(parents=True, exist_ok=True)
        dataset = directory / "dataset"
        if not dataset.exists():
            write_dataset(directory, options.cells)
        start = time.monotonic()
        command = [
            sys.executable,
            "-m",
            "hpcrl",
            "report",
            str(dataset),
            "-o",
            str(directory / "report"),
            "--figures",
            "none",
        ]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        print(f"hpcrl report of {options.cells:,} cells: {time.monotonic() - start:.1f} s")
        page = directory / "report/report.html"
        print(f"report.html: {page.stat().st_size / 1e6:.1f} MB")
        with opened(page) as browser:
            loaded = until(lambda: browser.execute_script(_LOADED), "loaded")
            painted = until(lambda: browser.execute_script(_FIRST_PAINT), "painted")
            print(
                f"first paint after {painted / 1000:.2f} s, loaded after {loaded / 1000:.2f} s, {_cpu(browser):.2f} s of CPU by then"
            )
            print(f"table sorted and searched in {browser.execute_script(_SORT) / 1000:.3f} s")
            drawn, panels = browser.execute_async_script(_DRAW)
            print(f"all {panels} panels drawn in {drawn / 1000:.2f} s")


if __name__ == "__main__":
    main()
