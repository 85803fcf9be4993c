"""The process that draws: its end is one sentence, and the rest of the report is written."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from hpcrl.collect.merge import collect
from hpcrl.report.renderer import Renderer, RendererError
from tests.builders import cells_of, command_study, planned, write_record
from tests.collect.gathering import no_slurm

SPEC = {
    "$schema": "https://vega.github.io/schema/vega-lite/v5.json",
    "data": {"values": [{"a": 1}]},
    "mark": "bar",
    "encoding": {"x": {"field": "a", "type": "quantitative"}},
    "config": {},
}
# V8 reserves more than 64 GiB of addresses, the rest of hpcrl less than 4.
LIMIT = 4 * 2**30


@pytest.fixture
def dataset(tmp_path: Path) -> Path:
    plan = planned(tmp_path / "plan", command_study(["true"], axes={"tasks": [1, 2]}, seeds=2))
    for cell in cells_of(plan):
        write_record(plan, cell)
    collect([plan], tmp_path / "dataset", no_slurm())
    return tmp_path / "dataset"


def reported(dataset: Path, *words: str, limit: int | None = LIMIT) -> subprocess.CompletedProcess[str]:
    def limited() -> None:
        if limit:
            resource.setrlimit(resource.RLIMIT_AS, (limit, limit))

    output = dataset.parent / "report"
    return subprocess.run(
        [sys.executable, "-m", "hpcrl", "report", str(dataset), "-o", str(output), *words],
        preexec_fn=limited, env=os.environ | {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
        cwd=dataset.parent, capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip


def test_a_report_under_a_limit_of_memory_has_all_but_its_figures(dataset: Path) -> None:
    done = reported(dataset, "--figures", "png")
    assert done.returncode == 1
    (line,) = done.stderr.strip().splitlines()
    assert (
        line.startswith("hpcrl: ") and "has no figures: the process that draws figures (V8) was killed by SIG" in line
    )
    assert "4.0 GiB (ulimit -v)" in line and "--figures none" in line
    report = dataset.parent / "report"
    page = (report / "report.html").read_text()
    assert "Figures could not be drawn" in page and "Values of “Wall time”" in page
    assert "vegaEmbed" not in page.partition("const specs")[0]
    assert "const specs = {};" in page and 'class="drawing"' not in page
    assert {"summary.csv", "cells.csv", "scaling.csv", "report.html"} <= {path.name for path in report.iterdir()}
    assert not list(report.glob("figures/*"))
    assert not list(dataset.parent.glob("core*"))


def test_without_the_limit_it_has_them(dataset: Path) -> None:
    done = reported(dataset, "--figures", "svg", limit=None)
    assert (done.returncode, done.stderr) == (0, "")
    page = (dataset.parent / "report/report.html").read_text()
    assert 'class="drawing"' in page and "Figures could not be drawn" not in page
    assert (dataset.parent / "report/figures/mine-wall-time.svg").read_text().startswith("<svg")


def test_it_is_started_again_for_the_next_figure() -> None:
    with Renderer() as renderer:
        assert renderer.draw(SPEC, "svg").startswith(b"<svg")
        assert renderer._child is not None
        os.kill(renderer._child.pid, signal.SIGKILL)
        with pytest.raises(RendererError, match="was killed by SIGKILL: run the report with more memory"):
            renderer.draw(SPEC, "svg")
        assert renderer.draw(SPEC, "svg").startswith(b"<svg")


def test_what_cannot_be_drawn_is_said_and_harms_no_other() -> None:
    with Renderer() as renderer:
        with pytest.raises(RendererError, match="cannot be drawn: "):
            renderer.draw(SPEC | {"mark": "no such mark"}, "svg")
        child = renderer._child
        assert renderer.draw(SPEC, "png").startswith(b"\x89PNG")
        assert renderer._child is child


def test_the_script_of_the_page_can_be_asked_for_beforehand() -> None:
    with Renderer() as renderer:
        renderer.begin()
        assert renderer.draw(SPEC, "pdf").startswith(b"%PDF")
        assert "vegaEmbed" in renderer.bundle()


def test_it_ends_with_the_report() -> None:
    with Renderer() as renderer:
        renderer.begin()
        child = renderer._child
    assert child is not None and child.returncode is not None
