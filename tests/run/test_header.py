"""Header and footer that a cell writes have the fields that formats declares, and no others."""

from __future__ import annotations

from pathlib import Path

from hpcrl.formats.fields import FOOTER, FOOTER_TOO, FOR_PEOPLE, HEADER, REQUIRED
from hpcrl.formats.record import read_frames
from tests.builders import command_study, planned, run_task


def test_each_field_that_is_written_is_declared(tmp_path: Path) -> None:
    plan = planned(tmp_path / "plan", command_study(["true"]))
    run_task(plan, "mine-numpy-cpu-1")
    (path,) = (plan / "records").iterdir()
    written = {frame.kind: set(frame.payload) for frame in read_frames(path, frozenset({"header", "footer"}))}
    assert set(REQUIRED) <= written["header"] <= {*HEADER, *FOR_PEOPLE}
    assert set(FOR_PEOPLE) <= written["header"]
    assert written["footer"] <= {*FOOTER, *FOOTER_TOO}
