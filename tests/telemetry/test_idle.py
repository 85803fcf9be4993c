"""The idle machine. Each test has its own network namespace, in which only its own cells are to be seen."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hpcrl.collect.reading import RecordData, read_record
from hpcrl.telemetry import idle
from hpcrl.telemetry.provenance import hardware, virtual
from tests.builders import cells_of, dqn_study, planned
from tests.run.test_cell import JOB

PREFIXES = (["unshare", "--net"], ["unshare", "--user", "--map-root-user", "--net"])
# It is a cell that runs until its standard input closes.
CELL = "import sys; from pathlib import Path; from hpcrl.telemetry.idle import begin_cell\n"
CELL += "found, mark = begin_cell(Path(sys.argv[1]), float(sys.argv[2])); print(found, flush=True); sys.stdin.read()"
RUN = [sys.executable, "-m", "hpcrl.run"]


@pytest.fixture
def alone() -> list[str]:
    for prefix in PREFIXES:
        if subprocess.run([*prefix, "true"], capture_output=True, check=False).returncode == 0:
            return prefix
    pytest.skip("this user may not make a network namespace")


def records(plan: Path) -> dict[str, RecordData]:
    found = [read_record(path) for path in (plan / "records").iterdir()]
    return {data.header["cell"]: data for data in found}


def baseline(data: RecordData) -> tuple[float | None, float | None]:
    return data.header.get("idle_cpu_percent"), data.header.get("idle_memory_percent")


def test_a_host_is_measured_once_for_the_cells_that_start_together_and_later(tmp_path: Path, alone: list[str]) -> None:
    plan = planned(tmp_path / "p", dqn_study(idle_seconds=1, seeds=3))
    each = f'"$0" -m hpcrl.run "$1" --job {JOB} --index'
    begun = time.time()
    done = subprocess.run(
        [*alone, "bash", "-c", f"{each} 0 & {each} 1 & wait; {each} 2", sys.executable, str(plan)],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    found = list(records(plan).values())
    assert len(found) == 3
    ((cpu, memory),) = {baseline(data) for data in found}
    assert cpu is not None and memory is not None
    assert 0 <= cpu <= 100
    assert 0 < memory < 100
    assert not any("idle" in text for data in found for text in data.events)
    assert all(data.header["started"] > begun + 1 for data in found)  # nobody trains meanwhile
    (file,) = (plan / "idle").iterdir()
    assert json.loads(file.read_text())["cpu_percent"] == cpu


def test_nodes_of_one_host_share_its_measurement(tmp_path: Path, alone: list[str]) -> None:
    """As those of a private Slurm: otherwise the second would find the cell of the first running."""
    plan = planned(tmp_path / "p", dqn_study(idle_seconds=0.5, seeds=2))
    each = f'"$0" -m hpcrl.run "$1" --job {JOB} --index'
    on_both = f"SLURM_JOB_ID=7 SLURMD_NODENAME=n1 {each} 0 & SLURM_JOB_ID=8 SLURMD_NODENAME=n2 {each} 1 & wait"
    done = subprocess.run(
        [*alone, "bash", "-c", on_both, sys.executable, str(plan)], capture_output=True, text=True, timeout=120
    )
    found = list(records(plan).values())
    assert {data.header["node"] for data in found} == {"n1", "n2"}, done.stderr
    ((cpu, memory),) = {baseline(data) for data in found}
    assert None not in (cpu, memory)
    assert not any("idle" in text for data in found for text in data.events)


def test_nothing_is_measured_beside_another_cell_and_a_killed_cell_is_gone(tmp_path: Path, alone: list[str]) -> None:
    plan = planned(tmp_path / "p", dqn_study(idle_seconds=0.5, seeds=2))
    script = """
import subprocess, sys
other = subprocess.Popen([sys.executable, "-c", sys.argv[1], "none", "0"], stdin=-1, stdout=-1)
other.stdout.readline()
run = [sys.executable, "-m", "hpcrl.run", sys.argv[2], "--job", sys.argv[3], "--index"]
first = subprocess.run([*run, "0"])
other.kill()
other.wait()
sys.exit(first.returncode or subprocess.run([*run, "1"]).returncode)
"""
    command = [*alone, sys.executable, "-c", script, CELL, str(plan), JOB]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    first, second = (records(plan)[cell["id"]] for cell in cells_of(plan))
    assert baseline(first) == (None, None)
    assert first.events[0] == "the idle machine was not measured, because another cell of hpcrl ran on it"
    assert None not in baseline(second)
    assert not any("idle" in text for text in second.events)


def test_a_cell_that_measures_nothing_waits_for_another_s_measurement(tmp_path: Path, alone: list[str]) -> None:
    script = """
import subprocess, sys, time
start = lambda seconds: subprocess.Popen([sys.executable, "-c", sys.argv[1], sys.argv[2], seconds], stdin=-1, stdout=-1)
measuring = start("2")
while "@hpcrl-idle-" not in open("/proc/net/unix").read():
    time.sleep(0.01)
begun = time.monotonic()
other = start("0")
print(other.stdout.readline().decode(), time.monotonic() - begun, measuring.stdout.readline().decode())
"""
    done = subprocess.run(
        [*alone, sys.executable, "-c", script, CELL, str(tmp_path / "i/n.json")],
        capture_output=True,
        text=True,
        timeout=60,
    )
    nothing, seconds, measured = done.stdout.split("\n")[0], *done.stdout.split("\n")[1].split(" ", 2)[1:]
    assert nothing == "Baseline(cpu_percent=None, memory_percent=None, note=None)"
    assert float(seconds) > 1
    assert "note=None" in measured and "cpu_percent=None" not in measured


@pytest.mark.skipif(os.getuid() != 0, reason="only root can be another user")
@pytest.mark.parametrize("listens", [True, False])
def test_nobody_waits_for_a_name_that_another_user_has_taken(tmp_path: Path, alone: list[str], listens: bool) -> None:
    script = """
import subprocess, sys, time
hold = "import os, socket, sys; os.setuid(65534); s = socket.socket(socket.AF_UNIX); s.bind(chr(0) + 'hpcrl-idle-0')\\n"
hold += "if sys.argv[1] == 'True': s.listen()\\n" + "print('held', flush=True); sys.stdin.read()"
holder = subprocess.Popen([sys.executable, "-c", hold, sys.argv[3]], stdin=-1, stdout=-1)
holder.stdout.readline()
begun = time.monotonic()
cell = subprocess.Popen([sys.executable, "-c", sys.argv[1], sys.argv[2], "60"], stdin=-1, stdout=-1)
print(cell.stdout.readline().decode(), time.monotonic() - begun)
"""
    words = [*alone, sys.executable, "-c", script, CELL, str(tmp_path / "i/n.json"), str(listens)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60)
    assert "or another user has taken its name" in done.stdout, done.stderr
    assert float(done.stdout.split()[-1]) < 30  # of the 90 that a cell waits for one of its own user


def written(path: Path, age: float, **changes: Any) -> Path:
    content = {"cpu_percent": 1.5, "memory_percent": 13.5, "unix_time": time.time() - age}
    path.write_text(json.dumps(content | changes))
    return path


@pytest.mark.parametrize(
    ("age", "changes", "valid"),
    [
        (60, {}, True),
        (idle.VALID_SECONDS + 60, {}, False),
        (-3600, {}, False),  # of another clock
        (60, {"cpu_percent": None}, False),
        (60, {"unix_time": "now"}, False),
        (60, {"cpu_percent": float("nan")}, False),
        (60, {"memory_percent": 10**400}, False),
        (60, {"memory_percent": 101}, False),
        (60, {"another": 1}, False),
    ],
)
def test_how_long_a_measurement_is_valid(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, age: float, changes: dict[str, Any], valid: bool
) -> None:
    new = idle.Baseline(2.0, 3.0)
    monkeypatch.setattr(idle, "_new", lambda file, seconds: new)
    found, mark = idle.begin_cell(written(tmp_path / "n.json", age, **changes), 1.0)
    mark.close()
    assert found == (idle.Baseline(1.5, 13.5) if valid else new)


def test_a_measurement_that_does_not_end_is_not_waited_for_longer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(idle, "_PATIENCE", 0.0)
    with idle._turn(60) as mine:
        assert mine
        found, mark = idle.begin_cell(tmp_path / "n.json", 0.2)
        mark.close()
    assert (
        found.note
        == "the idle machine was not measured, because another cell's measurement did not end in time, or another user has taken its name"
    )


@pytest.mark.usefixtures("no_sockets")
def test_a_result_that_cannot_be_kept_is_still_the_cell_s(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    found, mark = idle.begin_cell(tmp_path / "file/n.json", 0.1)
    mark.close()
    assert found.note is None
    assert found.memory_percent is not None


def with_no_sockets(read: Callable[[Path], bytes]) -> Callable[[Path], bytes]:
    return lambda path: b"" if str(path) == "/proc/net/unix" else read(path)


@pytest.fixture
def no_sockets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Path, "read_bytes", with_no_sockets(Path.read_bytes))


@pytest.mark.usefixtures("no_sockets")
@pytest.mark.parametrize(
    "put",
    [
        os.mkfifo,
        lambda file: file.symlink_to("/dev/zero"),
        lambda file: file.symlink_to(file),
        lambda file: file.write_text("[" * 50_000),
        lambda file: file.write_bytes(b"\xff"),
        lambda file: file.mkdir(),
        lambda file: (file.touch(), os.truncate(file, 2**30)),
    ],
)
def test_what_stands_in_the_place_of_a_result_is_not_read(tmp_path: Path, put: Callable[[Path], object]) -> None:
    file = tmp_path / "n.json"
    put(file)
    found, mark = idle.begin_cell(file, 0.1)
    mark.close()
    assert found.note is None
    assert found.memory_percent is not None


@pytest.mark.usefixtures("no_sockets")
def test_a_result_is_not_written_through_a_directory_that_is_a_link(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "idle").symlink_to("elsewhere")
    found, mark = idle.begin_cell(tmp_path / "idle/n.json", 0.1)
    mark.close()
    assert found.memory_percent is not None
    assert not list((tmp_path / "elsewhere").iterdir())


@pytest.mark.usefixtures("no_sockets")
def test_a_full_disk_does_not_end_the_cell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*words: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fdopen", full)
    found, mark = idle.begin_cell(tmp_path / "n.json", 0.1)
    mark.close()
    assert found.memory_percent is not None


def test_names_of_sockets_may_be_any_bytes(tmp_path: Path, alone: list[str]) -> None:
    script = "import socket; other = socket.socket(socket.AF_UNIX); other.bind(b'\\0\\xff\\n')\n"
    done = subprocess.run(
        [*alone, sys.executable, "-c", script + CELL, str(tmp_path / "i/n.json"), "0.1"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert "note=None" in done.stdout, done.stderr


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"proc/cpuinfo": "flags\t\t: fpu sse\n"}, "no"),
        ({"proc/cpuinfo": "flags\t\t: fpu hypervisor sse\n"}, "virtual machine"),
        (
            {
                "proc/cpuinfo": "model name: x\nflags : hypervisor\nbogomips : 1\n",
                "sys/class/dmi/id/sys_vendor": "VMware, Inc.\n",
                "sys/class/dmi/id/product_name": "VMware Virtual Platform\n",
                "run/.containerenv": "",
            },
            "virtual machine VMware, Inc. VMware Virtual Platform, container",
        ),
        ({"proc/cpuinfo": "Features : fp asimd\n"}, None),  # ARM does not say it
        ({}, None),
    ],
)
def test_virtual_machines(tmp_path: Path, files: dict[str, str], expected: str | None) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert virtual(tmp_path) == expected


def test_the_operating_system_is_what_its_own_file_says() -> None:
    found = hardware()
    said = dict(line.split("=", 1) for line in Path("/etc/os-release").read_text().splitlines() if "=" in line)
    assert found["os"] == said["NAME"].strip('"')
    assert found["kernel"] == subprocess.run(["uname", "-r"], capture_output=True, text=True).stdout.strip()
