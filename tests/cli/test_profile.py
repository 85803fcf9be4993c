"""`hpcrl profile`: what it lists, shows, exports and refuses."""

from __future__ import annotations

import json
import pstats
import shlex
import shutil
from collections.abc import Callable
from pathlib import Path

from hpcrl.collect.profiles import profiles_of
from hpcrl.profilers import PROFILERS
from tests.builders import cells_by_key, cells_of, dqn_study, planned
from tests.conftest import Shown
from tests.run.test_profiling import trained

__all__ = ["trained"]


def test_the_command_line_lists_shows_and_exports(trained: Path, tmp_path: Path, hpcrl: Callable[..., Shown]) -> None:
    plan, cell = trained / "p", cells_by_key(trained / "p", "profile")[2]["id"]
    listed = hpcrl("profile", plan)
    assert listed.out.splitlines()[0].split("\t")[:4] == ["cell", "attempt", "rank", "profiler"]
    assert len(listed.out.splitlines()) == 3
    assert cell in listed.out
    shown = hpcrl("profile", plan, "--cell", cell[:8], "--top", 3)
    assert "own (s)\twith callees (s)\tcalls\tfunction" in shown.out
    assert len([line for line in shown.out.splitlines() if line.count("\t") == 3]) == 4
    assert "Open it with: snakeviz " in shown.out
    facts = json.loads(hpcrl("profile", plan, "--cell", cell, "--top", 3, "--json").out)
    assert (facts["profiler"], len(facts["functions"])) == ("cprofile", 3)
    for form, start in (("flame", "<svg "), ("stacks", "train (hpcrl/rl/train.py:")):
        assert hpcrl("profile", plan, "--cell", cell, "--export", form, "-o", tmp_path / form).code == 0
        assert (tmp_path / form).read_text().startswith(start)
    assert hpcrl("profile", plan, "--cell", cell, "--export", "file", "-o", tmp_path / "x.pstats").code == 0
    assert pstats.Stats(str(tmp_path / "x.pstats")).total_calls > 1000  # type: ignore[attr-defined]


def test_what_opens_a_file_can_be_pasted_into_a_shell(
    trained: Path, tmp_path: Path, hpcrl: Callable[..., Shown]
) -> None:
    plan = tmp_path / "my plans/p"
    shutil.copytree(trained / "p", plan)
    (found,) = profiles_of(plan, cells_by_key(plan, "profile")[2]["id"])
    said = hpcrl("profile", plan, "--cell", found.cell).out
    assert shlex.split(said.partition("Open it with: ")[2]) == ["snakeviz", str(found.path)]
    assert found.path is not None
    found.path.write_bytes(b"cos\nsystem\n(S'true'\ntR.")  # a pickle that runs a command
    said = hpcrl("profile", plan, "--cell", found.cell).out
    assert "Open it" not in said
    assert "It has another size than the file that the cell wrote: somebody changed it, so do not open it." in said
    told = {name: each.opened_with(Path("/my plans/x"), plan, "3f2a") for name, each in PROFILERS.items()}
    assert shlex.split(told["memray"]) == ["memray", "flamegraph", "/my plans/x"]
    assert told["py-spy"] == "https://www.speedscope.app (choose '/my plans/x' there)"
    command = ["hpcrl", "profile", str(plan), "--cell", "3f2a", "--export", "trace"]
    assert shlex.split(told["framework"].partition(", and ")[0]) == command


def test_what_has_no_profile_is_said(trained: Path, hpcrl: Callable[..., Shown], tmp_path: Path) -> None:
    plan, cell = trained / "p", cells_by_key(trained / "p", "profile")[0]["id"]
    shown = hpcrl("profile", plan, "--cell", cell)
    assert shown.code == 2
    assert shown.err == (
        f"hpcrl: cell {cell} of {plan}: has no profile: run it with `hpcrl run {plan} --cell {cell} --profile cprofile`, or plan the study with "
        "`profile: cprofile`\n"
    )
    empty = planned(tmp_path / "p", dqn_study())
    assert "No cell has a profile." in hpcrl("profile", empty).out
    assert hpcrl("profile", empty, "--export", "flame").code == 2
    assert "--output: needs --export" in hpcrl("profile", plan, "--cell", cell, "-o", tmp_path / "x").err
    shown = hpcrl("profile", plan, "--cell", cell, "--export", "flame", "--json")
    assert (shown.code, "leave one of the two out" in shown.err) == (2, True)
    (empty / "records").rmdir()
    assert "No cell has a profile." in hpcrl("profile", empty).out
    (empty / "records").write_text("")
    for words in ([], ["--cell", cells_of(empty)[0]["id"]]):
        assert hpcrl("profile", empty, *words).err == f"hpcrl: {empty}/records: cannot be read: Not a directory\n"


def test_a_file_that_is_gone_or_leads_elsewhere_is_not_exported(
    trained: Path, tmp_path: Path, hpcrl: Callable[..., Shown]
) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(trained / "p", copy)
    cell = cells_by_key(copy, "profile")[3]["id"]
    (file,) = (copy / "profiles").glob(f"{cell}.*")
    written = file.read_bytes()
    file.write_bytes(written + b"more")
    for words in (["--export", "file"], ["--export", "file", "-o", str(tmp_path / "x")]):
        shown = hpcrl("profile", copy, "--cell", cell, *words)
        assert shown.code == 1
        assert f"has {len(written) + 4:,} bytes, and the cell wrote {len(written):,}: somebody changed it" in shown.err
    file.unlink()
    file.symlink_to("/etc/passwd")
    shown = hpcrl("profile", copy, "--cell", cell, "--export", "file", "-o", tmp_path / "x")
    assert shown.code == 1
    assert (
        "its file is not in the plan's directory: was it removed, or not copied, or may you not read it?" in shown.err
    )
    assert not (tmp_path / "x").exists()
    assert (
        hpcrl("profile", copy, "--cell", cell, "--export", "flame", "-o", tmp_path / "y").code == 0
    )  # from the record


def test_cprofile_has_no_trace(trained: Path, hpcrl: Callable[..., Shown]) -> None:
    shown = hpcrl(
        "profile", trained / "p", "--cell", cells_by_key(trained / "p", "profile")[2]["id"], "--export", "trace"
    )
    assert shown.code == 1
    assert "has no times of single events, only `profile: framework` has: use --export flame" in shown.err
