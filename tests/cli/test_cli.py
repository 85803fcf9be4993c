from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from hpcrl.cli.main import _VERBS
from hpcrl.plan import make
from tests.builders import cells_of, command_study, dqn_study, planned, write_record, write_yaml
from tests.conftest import Shown

Call = Callable[..., Shown]


@pytest.mark.parametrize("verb", _VERBS)
def test_every_verb_has_help_with_an_example(hpcrl: Call, verb: str) -> None:
    shown = hpcrl(verb, "--help")
    assert shown.code == 0
    if verb not in ("env", "cluster", "study", "template", "dev"):
        assert "Example: hpcrl" in shown.out


def test_help_loads_neither_pandas_nor_a_framework() -> None:
    code = "import sys; sys.argv = ['hpcrl', '--help']\nfrom hpcrl.cli.main import main\ntry: main()\nexcept SystemExit: pass\nprint(sorted(sys.modules), file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "Commands:" in done.stdout
    for heavy in ("'pandas'", "'numpy'", "'pyarrow'", "'pydantic'", "'submitit'", "'gymnasium'", "'rich'", "'torch'"):
        assert heavy not in done.stderr


def test_version_and_completion(hpcrl: Call) -> None:
    assert hpcrl("--version").out.startswith("hpcrl, version 0.")
    environment = os.environ | {"_HPCRL_COMPLETE": "bash_complete", "COMP_WORDS": "hpcrl pl", "COMP_CWORD": "1"}
    done = subprocess.run(
        [sys.executable, "-c", "from hpcrl.cli.main import main; import sys; sys.argv[0] = 'hpcrl'; main()"],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert "plain,plan" in done.stdout


def test_misuse_is_one_sentence_and_exit_code_2(hpcrl: Call, in_tmp: Path) -> None:
    write_yaml(in_tmp / "empty-axis.yaml", command_study(["true"], axes={"variant": []}))
    write_yaml(in_tmp / "nothing.yaml", command_study(["true"], exclude=[{"variant": "a"}]))
    write_yaml(
        in_tmp / "huge.yaml", command_study(["true"], axes={"a": list(range(1000)), "b": list(range(1000))}, seeds=10)
    )
    (in_tmp / "broken.yaml").write_text("a: [1\nb: 2\n")
    cases = {
        ("plna",): "no command 'plna'; did you mean 'plan'?",
        ("plan", "--cluster", "soll"): "no cluster profile 'soll'; did you mean 'sol'?",
        ("plan", "--study", "quickstrat"): "no study 'quickstrat'; did you mean 'quickstart'?",
        ("plan", "--study", "none.yaml"): "none.yaml: no such file",
        ("plan", "--study", "huge"): "no study 'huge': for the file huge.yaml write huge.yaml",
        ("plan", "--study", "empty-axis.yaml"): "axes.variant: has no values: give at least one",
        ("plan", "--study", "nothing.yaml"): "no cell is left",
        ("plan", "--study", "huge.yaml"): "expected at most 1,000,000 cells, got 10,000,000",
        ("plan", "--study", "broken.yaml"): "broken.yaml:2: not valid YAML",
        ("plan", "--cluster", "cirrus", "--account", "a b"): "account 'a b': not a valid Slurm account",
        (
            "plan",
            "--cluster",
            "cirrus",
            "--study",
            "sol-dqn",
            "--account",
            "x",
            "--strict",
        ): "130 cells have no place on EPCC, Cirrus EX4000",
        ("plan", "--path", "nowhere"): "nowhere: is not a directory",
        ("submit", "nowhere"): "nowhere: is not a plan directory",
        ("status",): "plan: is not a plan directory",
        ("collect", "nowhere"): "nowhere: is not a plan directory",
        ("report", "nowhere"): "nowhere: is not a dataset",
        ("env", "create"): "expected the name of an environment, or --plan PLAN",
        ("env", "show", "troch"): "no environment 'troch'; did you mean 'torch'?",
        ("env", "show", "numpy", "--flavour", "cuda"): "environment numpy: has no cuda flavour",
        ("template", "show", "sbatch/cell"): "no template 'sbatch/cell'; did you mean",
        ("cluster", "show", "sol", "--key", "partition"): "nothing below 'partition'; did you mean 'partitions'?",
        ("dev", "slurm", "up", "--cluster", "workstation", "--dir", "v"): "has no Slurm",
        ("dev", "slurm", "down", "--dir", "v"): "no private Slurm was started here",
    }
    before = sorted(path.name for path in in_tmp.iterdir())
    for arguments, expected in cases.items():
        shown = hpcrl(*arguments)
        assert shown.code == 2, (arguments, shown)
        assert expected in shown.err, (arguments, shown)
        assert "Traceback" not in shown.err
        assert "a fault in hpcrl" not in shown.err
        assert shown.out == ""
    assert sorted(path.name for path in in_tmp.iterdir()) == before


def test_a_plan_that_cannot_be_written_is_exit_code_1(hpcrl: Call, in_tmp: Path) -> None:
    (in_tmp / "file").touch()
    shown = hpcrl("plan", "-o", "file/plan")
    assert shown.code == 1
    assert "file/plan: cannot be" in shown.err


def test_a_full_disk_leaves_nothing(hpcrl: Call, in_tmp: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(self: Path, data: bytes) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    shown = hpcrl("plan")
    assert shown.code == 1
    assert "No space left on device; the directory was not created" in shown.err
    assert list(in_tmp.iterdir()) == []


def test_plan_says_what_it_costs_and_what_has_no_place(hpcrl: Call, in_tmp: Path) -> None:
    shown = hpcrl("plan", "--cluster", "cirrus", "--study", "sol-dqn", "--account", "z01")
    assert shown.code == 0
    assert "130 cells in 8 jobs" in shown.out
    assert "1520 core-h" in shown.out
    assert "nearest: gpus: 0" in shown.out
    again = hpcrl("plan", "--cluster", "cirrus", "--study", "sol-dqn", "--account", "z01", "--json")
    data = json.loads(again.out)
    assert data["totals"]["unplaced"] == 130
    assert (
        "already contains this plan"
        in hpcrl("plan", "--cluster", "cirrus", "--study", "sol-dqn", "--account", "z01").out
    )


def test_dry_run_writes_nothing(hpcrl: Call, in_tmp: Path) -> None:
    assert hpcrl("plan", "--dry-run").code == 0
    assert list(in_tmp.iterdir()) == []


def test_plan_diff(hpcrl: Call, in_tmp: Path) -> None:
    planned(in_tmp / "a", command_study(["true"], seeds=1), "sol")
    planned(in_tmp / "b", command_study(["true"], seeds=2), "sol")
    assert hpcrl("plan", "diff", "a", "a").code == 0
    shown = hpcrl("plan", "diff", "a", "b")
    assert shown.code == 1
    assert "+ cell" in shown.out


def test_where_a_value_comes_from(hpcrl: Call) -> None:
    shown = hpcrl("cluster", "show", "sol", "--origin", "--key", "partitions.htc.max_time")
    assert shown.out.startswith("partitions.htc.max_time: 04:00:00   [")
    assert "sol.yaml:" in shown.out
    assert "source docs.rc.asu.edu" in shown.out
    assert "as of 2026-08" in shown.out


def test_profiles_without_sources_are_found(hpcrl: Call, in_tmp: Path) -> None:
    text = "name: x\ntitle: X\ndefault_study: quickstart\nsources:\n  s: {title: S, as_of: now}\nnode_types:\n  n: {cores: 1, memory: 1G}\n"
    (in_tmp / "x.yaml").write_text(
        text + "partitions:\n  p: {node_types: [n], max_time: 01:00:00}\nenvironments: {manager: uv, root: /e}\n"
    )
    shown = hpcrl("cluster", "check", "x.yaml")
    assert shown.code == 1
    assert "x.yaml:7: node_types.n.cores: `source` is missing" in shown.err
    assert hpcrl("cluster", "check").code == 0
    (in_tmp / "mine.yaml").write_text("extends: sol\n")
    told = "mine.yaml: good; datasets and reports call this cluster sol (key name)\n"
    assert hpcrl("cluster", "check", "mine.yaml").out == told


@pytest.mark.parametrize("kind", ["cluster", "study", "environment", "claims"])
def test_schemas_are_json(hpcrl: Call, kind: str) -> None:
    assert "properties" in json.loads(hpcrl("schema", kind).out)


def test_lists(hpcrl: Call, in_tmp: Path) -> None:
    write_yaml(in_tmp / "jobs" / "mine.yaml", command_study(["true"]))
    assert "mine\t1\t" in hpcrl("study", "list").out
    assert "quickstart\t8\t" in hpcrl("study", "list").out
    assert "cirrus-legacy\tretired" in hpcrl("cluster", "list").out
    assert "sbatch/cells.sbatch\t" in hpcrl("template", "list").out
    assert "torch==2.13.0+cpu" in hpcrl("env", "show", "torch").out
    assert "  - cxx-compiler\n" in hpcrl("env", "show", "torch").out
    assert "nvidia-cudnn" in hpcrl("env", "show", "torch", "--flavour", "cuda").out
    assert hpcrl("env", "show", "numpy", "--requirements").out.count("--hash=sha256:") > 7
    assert (
        "cirrus-2022\tcuda\tPyTorch 1.4 and TensorFlow 1.15, the paper's own\tnot built: it needs"
        in hpcrl("env", "list").out
    )
    refused = hpcrl("env", "create", "cirrus-2022")
    assert (refused.code, refused.out) == (2, "")
    assert "hpcrl: environment cirrus-2022 is not built: it needs Python 3.7" in refused.err
    assert "#!/bin/bash" in hpcrl("template", "show", "sbatch/base.sbatch").out
    assert "runs: dqn on CartPole-v1" in hpcrl("study", "show", "sol-dqn").out


def test_the_search_path(hpcrl: Call, in_tmp: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for place in ("site", "named", "given"):
        write_yaml(in_tmp / place / "clusters" / "sol.yaml", {"extends": "sol", "title": f"Sol of {place}"})
    monkeypatch.setenv("HPCRL_SITE", str(in_tmp / "site"))
    assert "Sol of site" in hpcrl("cluster", "list").out
    monkeypatch.setenv("HPCRL_PATH", str(in_tmp / "named"))
    assert "Sol of named" in hpcrl("cluster", "list").out
    assert "Sol of given" in hpcrl("cluster", "list", "--path", in_tmp / "given").out


def test_collect_and_report(hpcrl: Call, in_tmp: Path) -> None:
    plan = planned(in_tmp / "plan", dqn_study())
    write_record(plan, cells_of(plan)[0])
    (plan / "records" / "bad.rec").write_bytes(b"x")
    shown = hpcrl("collect")
    assert shown.code == 0
    assert "1 record merged" in shown.out
    assert "quarantined: " in shown.err
    shown = hpcrl("report")
    assert shown.code == 0
    assert "Report: report/report.html" in shown.out


def test_a_fault_of_ours_is_one_sentence_too(hpcrl: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*arguments: object) -> None:
        raise RuntimeError("oops")

    monkeypatch.setattr(make, "make_plan", broken)
    shown = hpcrl("plan", "--dry-run")
    assert shown.code == 1
    assert "a fault in hpcrl itself (RuntimeError); please report it with" in shown.err
    log = Path(shown.err.rpartition(" ")[2].strip())
    assert "oops" in log.read_text()
    log.unlink()


@pytest.mark.parametrize(
    ("verb", "folder", "text", "says", "still"),
    [
        ("cluster", "clusters/broken.yaml", "name: [1\n", "clusters/broken.yaml:2: not valid YAML", "sol"),
        ("env", "envs/broken.yaml", "nmae: x\n", "envs/broken.yaml:1: nmae: unknown key; did you mean 'name'?", "torch"),
        ("study", "jobs/broken.yaml", "extends: nothing\n", "jobs/broken.yaml:1: extends: no study 'nothing'", "quickstart"),
        ("template", "templates/sbatch/broken.j2", "{% if %}\n", "templates/sbatch/broken.j2:1: template: ", "sbatch/cells.sbatch"),
    ],
)  # fmt: skip
def test_lists_survive_a_broken_file(
    in_tmp: Path, hpcrl: Callable[..., Shown], verb: str, folder: str, text: str, says: str, still: str
) -> None:
    (in_tmp / folder).parent.mkdir(parents=True)
    (in_tmp / folder).write_text(text)
    shown = hpcrl(verb, "list")
    assert shown.code == 1
    assert says in shown.err
    names = [line.split("\t")[0] for line in shown.out.splitlines()]
    assert still in names
    assert "broken" not in names


def test_a_study_is_checked_without_a_plan(in_tmp: Path, hpcrl: Callable[..., Shown]) -> None:
    write_yaml(in_tmp / "mine.yaml", dqn_study(axes={"framework": ["numpy"], "learning_rte": [0.1]}))
    shown = hpcrl("study", "check", "quickstart", "mine.yaml")
    assert shown.code == 1
    assert shown.out == "quickstart: good, 8 cells\n"
    assert re.match(r"mine\.yaml:\d+: axes\.learning_rte: no hyperparameter or resource 'learning_rte'", shown.err)


def test_a_check_says_what_a_plan_says_of_a_training(in_tmp: Path, hpcrl: Callable[..., Shown]) -> None:
    study = dqn_study(axes={"framework": ["numpy"]})
    study["workload"] |= {
        "algorithm": "ppo",
        "hyperparameters": {"total_steps": 100, "environments": 4, "rollout_steps": 32, "minibatch_size": 64},
    }
    write_yaml(in_tmp / "short.yaml", study)
    study["workload"] |= {"algorithm": "rainbow", "hyperparameters": {"value_minimum": -1, "value_maximum": 1}}
    write_yaml(in_tmp / "narrow.yaml", study)
    shown = hpcrl("study", "check", "short.yaml", "narrow.yaml")
    assert shown.code == 0
    short, narrow = shown.err.splitlines()
    assert "PPO learns after each rollout of 128 steps, so a training of 100 steps learns nothing" in short
    assert "support from -1 to 1 does not hold the discounted returns" in narrow


def test_a_key_of_a_profile_as_json(hpcrl: Callable[..., Shown]) -> None:
    shown = hpcrl("cluster", "show", "sol", "--key", "partitions.htc.max_time", "--json")
    assert (shown.code, json.loads(shown.out)) == (0, 14400)
    shown = hpcrl("cluster", "show", "sol", "--key", "partitions.hct", "--json")
    assert (shown.code, shown.err) == (2, "hpcrl: cluster sol: nothing at 'partitions.hct'; did you mean 'htc'?\n")


def test_status_shows_chosen_cells_and_what_tells_them_apart(in_tmp: Path, hpcrl: Call) -> None:
    axes = {"variant": ["a", "b"], "cpus": [1, 2]}
    planned(in_tmp / "plan", command_study(["true"], axes=axes))
    shown = hpcrl("status")
    assert [line.split("\t")[1] for line in shown.out.splitlines()[1:-1]] == [
        "a seed 1 (1 core)", "b seed 1 (1 core)", "a seed 1 (2 cores)", "b seed 1 (2 cores)"
    ]  # fmt: skip
    shown = hpcrl("status", "--where", "variant=b", "--where", "cpus=2")
    assert [line.split("\t")[1] for line in shown.out.splitlines()[1:-1]] == ["b seed 1 (2 cores)"]
    assert [
        each["config"]["variant"] for each in json.loads(hpcrl("status", "--where", "variant=a", "--json").out)["cells"]
    ] == ["a", "a"]
    assert json.loads(hpcrl("status", "--failed", "--json").out)["cells"] == []
    shown = hpcrl("status", "--where", "varant=b")
    assert (shown.code, shown.err) == (2, "hpcrl: --where varant: no cell has this key; did you mean 'variant'?\n")
    assert hpcrl("status", "--where", "varant").code == 2


def test_closed_standard_output_is_one_sentence(in_tmp: Path) -> None:
    done = subprocess.run(
        ["sh", "-c", f"{sys.executable} -m hpcrl study list >&-"], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (2, "hpcrl: standard output is closed: redirect it to /dev/null instead\n")
