from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from hpcrl.formats.plan import read_plan
from hpcrl.spec.user import config_directory
from tests.builders import cells_of, command_study, dqn_study, planned, write_record, write_yaml
from tests.conftest import Shown

Call = Callable[..., Shown]


def test_a_plan_is_extended_where_it_stands(hpcrl: Call, in_tmp: Path) -> None:
    arguments = ("plan", "--cluster", "sol", "--study", "s.yaml", "-o", "p")
    write_yaml(in_tmp / "s.yaml", command_study(["true"], seeds=100))
    assert "Generation" not in hpcrl(*arguments).out
    write_yaml(in_tmp / "s.yaml", command_study(["true"], seeds=list(range(6, 111))))
    shown = hpcrl(*arguments)
    assert shown.code == 0
    assert "Generation 2: 10 cells new, 95 as before, 5 no longer in the study.\n" in shown.out
    assert "Plan written to p. Next: hpcrl submit p" in shown.out
    again = hpcrl(*arguments, "--json")
    assert json.loads(again.out)["generation"] == 2
    assert "p already contains this plan" in hpcrl(*arguments).out
    write_yaml(in_tmp / "s.yaml", command_study(["true"], name="other"))
    shown = hpcrl(*arguments)
    assert shown.code == 2
    assert "p: contains a plan of study mine on sol, not of study other on sol: choose another directory" in shown.err
    # What is only looked at needs no directory of its own.
    (in_tmp / "p").rename("plan")
    assert hpcrl("plan", "--cluster", "sol", "--study", "s.yaml", "--dry-run").code == 0


def test_the_limits_of_the_site_are_said(hpcrl: Call, in_tmp: Path) -> None:
    write_yaml(in_tmp / "s.yaml", command_study(["true"], seeds=600))
    arguments = ("plan", "--cluster", "cirrus", "--account", "z01", "--study", "s.yaml", "--dry-run")
    expected = "256 jobs may wait in QOS standard: 3 cells run one after another in each array task"
    assert f"\n{expected}.\n" in hpcrl(*arguments).out
    assert json.loads(hpcrl(*arguments, "--json").out)["notes"][0] == expected
    chosen = expected.replace("3 cells", "5 cells")
    assert f"\n{chosen}.\n" in hpcrl(*arguments, "--cells-per-task", "5").out
    refused = hpcrl(*arguments, "--cells-per-task", "500")
    assert refused.code == 2
    assert "give at most 288" in refused.err
    assert hpcrl(*arguments, "--cells-per-task", "0").code == 2


def test_what_has_no_place_is_said_with_file_and_line(hpcrl: Call, in_tmp: Path) -> None:
    content = command_study(
        ["true"], axes={"size": [{"cpus": 1}, {"cpus": 300}, {"cpus": 1, "gpus": 1}]}, environment="torch"
    )
    path = write_yaml(
        in_tmp / "s.yaml", content | {"resources": {"memory": "1G", "time": "00:10:00", "exclusive": False}}
    )
    lines = {text.strip(" -{}"): number for number, text in enumerate(path.read_text().splitlines(), 1)}
    arguments = ("plan", "--cluster", "cirrus", "--account", "z01", "--study", "s.yaml", "--dry-run")
    shown = hpcrl(*arguments)
    cores = (
        f"s.yaml:{lines['cpus: 300']}: axes.size.1.cpus: it asks for 300 cores per node, but standard nodes have 288"
    )
    gpus = (
        f"s.yaml:{lines['cpus: 1, gpus: 1']}: axes.size.2.gpus: it asks for 1 GPU, but EPCC, Cirrus EX4000 has no GPU"
    )
    assert shown.code == 0
    for text in (cores, gpus):
        assert f"\n  {text}\n      cells: 1 (" in shown.out
    found = json.loads(hpcrl(*arguments, "--json").out)["unplaced"]
    assert [group["where"] for group in found] == [text.partition(": it asks")[0] for text in (cores, gpus)]
    strict = hpcrl(*arguments, "--strict")
    assert (strict.code, f"2 cells have no place on EPCC, Cirrus EX4000 (--strict): {cores}" in strict.err) == (2, True)
    # A value of the command line has no line.
    shown = hpcrl(*arguments, "--set", "axes.size=[small]", "--set", "resources.cpus=300")
    assert shown.code == 2
    assert "--set resources.cpus=300: resources.cpus: it asks for 300 cores per node" in shown.err


def test_whole_nodes_that_a_site_forbids_are_said_with_file_and_line(hpcrl: Call, in_tmp: Path) -> None:
    write_yaml(in_tmp / "shared.yaml", {"extends": "cirrus", "forbidden_flags": {"exclusive": "nodes are shared"}})
    path = write_yaml(in_tmp / "s.yaml", command_study(["true"], axes={"exclusive": [False, True]}))
    line = path.read_text().splitlines().index("  exclusive: [false, true]") + 1
    shown = hpcrl("plan", "--cluster", "shared.yaml", "--account", "z01", "--study", "s.yaml", "--dry-run")
    assert shown.code == 0
    reason = "it asks for whole nodes, but EPCC, Cirrus EX4000 forbids --exclusive (nodes are shared)"
    assert f"\n  s.yaml:{line}: axes.exclusive.1: {reason}\n" in shown.out
    assert (
        "\n      nearest: exclusive: false would fit (partition standard, QOS standard, standard nodes)\n" in shown.out
    )


def test_what_is_reused_is_counted(hpcrl: Call, in_tmp: Path) -> None:
    study = command_study(["true"], seeds=3)
    old = planned(in_tmp / "old", study)
    for cell in cells_of(old)[:2]:
        write_record(old, cell)
    write_yaml(in_tmp / "s.yaml", study)
    shown = hpcrl("plan", "--cluster", "sol", "--study", "s.yaml", "--reuse", "old", "-o", "new")
    assert "1 cell in 1 job" in shown.out
    assert "2 cells left out: completed in old.\n" in shown.out
    assert set(read_plan(in_tmp / "new").reused.values()) == {"old"}
    missing = hpcrl("plan", "--cluster", "sol", "--study", "s.yaml", "--reuse", "nowhere", "-o", "newer")
    assert missing.code == 2
    assert "--reuse nowhere: expected a plan directory or a dataset" in missing.err


@pytest.mark.parametrize(
    ("flag", "study", "settings", "expected"),
    [
        (
            ("--notify", "mail -s done me@example.org"),
            "https://s.org/",
            "https://u.org/",
            ["mail", "-s", "done", "me@example.org"],
        ),
        ((), "https://s.org/", "https://u.org/", "https://s.org/"),
        ((), None, "https://u.org/", "https://u.org/"),
        ((), None, None, None),
    ],
)
def test_who_is_told_at_the_end(
    hpcrl: Call, in_tmp: Path, flag: tuple[str, ...], study: str | None, settings: str | None, expected: object
) -> None:
    write_yaml(in_tmp / "s.yaml", command_study(["true"], **({"notify": study} if study else {})))
    if settings:
        write_yaml(config_directory() / "config.yaml", {"notify": settings})
    assert hpcrl("plan", "--cluster", "sol", "--study", "s.yaml", *flag).code == 0
    assert read_plan(in_tmp / "plan").study.notify == expected


def test_values_of_the_study_from_the_command_line(in_tmp: Path, hpcrl: Call) -> None:
    write_yaml(in_tmp / "s.yaml", dqn_study(axes={"framework": ["numpy"]}))
    call = ("plan", "--study", "s.yaml", "-o", "p")
    assert hpcrl(*call, "--set", "seeds=10", "--set", "resources.time=02:00:00").code == 0
    cells = cells_of(in_tmp / "p")
    assert len(cells) == 10
    assert {cell["resources"]["time"] for cell in cells} == {7200}
    assert {cell["config"]["execution"] for cell in cells} == {"eager"}


@pytest.mark.parametrize(
    ("setting", "expected"),
    [
        ("resources.time=99:99:99", '--set resources.time=99:99:99: resources.time: "99:99:99" is not a Slurm time'),
        ("sedes=3", "--set sedes=3: sedes: unknown key; did you mean 'seeds'?"),
        ("axes.learning_rte=[0.1]", "--set axes.learning_rte=[0.1]: axes.learning_rte: no hyperparameter or resource"),
        ("seeds", "--set seeds: expected KEY=VALUE, such as seeds=10"),
        ("title.short=x", "--set title.short=x: title is not a mapping: set the whole value"),
        ("seeds=[1", "--set seeds=[1:1: not valid YAML"),
        ("+axes.seed=[1]", "--set +axes.seed=[1]: +axes: expected a list to add to another list"),
    ],
)  # fmt: skip
def test_faults_of_values_from_the_command_line(in_tmp: Path, hpcrl: Call, setting: str, expected: str) -> None:
    write_yaml(in_tmp / "s.yaml", dqn_study(axes={"framework": ["numpy"]}))
    shown = hpcrl("plan", "--study", "s.yaml", "-o", "p", "--set", setting)
    assert shown.code == 2
    assert shown.err.removeprefix("hpcrl: ").startswith(expected)
    assert not (in_tmp / "p").exists()


def test_what_is_no_address(in_tmp: Path, hpcrl: Call) -> None:
    shown = hpcrl("plan", "--email", "nonsense", "-o", "p")
    assert (shown.code, shown.err) == (
        2,
        "hpcrl: --email 'nonsense': is not an e-mail address such as me@example.org\n",
    )


def test_gpu_cells_need_an_environment_with_cuda(in_tmp: Path, hpcrl: Call) -> None:
    write_yaml(
        in_tmp / "s.yaml",
        command_study(["true"], resources={"gpus": 1, "gpu_type": "a100", "memory": "1G", "time": "00:10:00"}),
    )
    shown = hpcrl("plan", "--study", "s.yaml", "--cluster", "sol", "--account", "x", "-o", "p")
    assert shown.code == 2
    assert "environment numpy: has no cuda flavour; there are: cpu" in shown.err
