from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hpcrl.errors import SpecError, UsageError
from hpcrl.spec.library import Library
from hpcrl.spec.rendering import Renderer, _expandable

ANY_TEXT = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=40)
NASTY = [
    "a b",
    "it's",
    '"x"',
    "$(touch oops)",
    "`id`",
    "${HOME}",
    "a\nb",
    "\\",
    "*",
    "~",
    "-n",
    "é ∑ 漢",
    "",
    "#",
    "!x",
    "a\tb",
]


def renderer(tmp_path: Path, name: str, text: str) -> Renderer:
    path = tmp_path / "templates" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return Renderer(Library([tmp_path]))


def bash(script: str) -> str:
    done = subprocess.run(["bash", "-c", script], capture_output=True, check=True)
    return done.stdout.decode()


@pytest.mark.parametrize("value", NASTY)
def test_nasty_values_reach_the_shell_unchanged(tmp_path: Path, value: str) -> None:
    script = renderer(tmp_path, "t.j2", "printf %s {{ value }}").render("t.j2", {"value": value})
    assert bash(script) == value


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(value=ANY_TEXT)
def test_any_value_reaches_the_shell_unchanged(tmp_path: Path, value: str) -> None:
    script = renderer(tmp_path, "t.j2", "printf %s {{ value }}").render("t.j2", {"value": value})
    assert bash(script) == value


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(value=st.text(st.characters(exclude_categories=["Cc", "Cs"]), max_size=40))
def test_in_an_expandable_only_variables_expand(tmp_path: Path, value: str) -> None:
    text = value.replace("$", "") + "/$WHO/${WHO}"
    script = renderer(tmp_path, "t.j2", 'WHO="a b"; printf %s "{{ value | expandable }}"').render(
        "t.j2", {"value": text}
    )
    assert bash(script) == value.replace("$", "") + "/a b/a b"


def test_quoting_holds_inside_blocks_and_super(tmp_path: Path) -> None:
    renderer(tmp_path, "base.j2", "{% block b %}printf %s {{ value }}{% endblock %}")
    child = renderer(
        tmp_path, "child.j2", '{% extends "base.j2" %}{% block b %}{{ super() }}; printf %s {{ value }}{% endblock %}'
    )
    assert bash(child.render("child.j2", {"value": "a b; echo x"})) == "a b; echo x" * 2


@pytest.mark.parametrize(
    ("text", "values", "expected"),
    [
        ("line\n{% if x %}\n", {}, r"t\.j2:2: template: Unexpected end of template|t\.j2:3: template"),
        ("line\n{{ valeu }}", {"value": 1}, r"t\.j2:2: template: 'valeu' is not defined; did you mean 'value'\?"),
        ("{{ value | bear }}", {"value": 1}, r"t\.j2:1: template: No filter named 'bear'"),
        ("{{ value }}", {"value": "a\0b"}, "NUL"),
        ("{{ 'x' | directive(value) }}", {"value": "a\nb"}, "control character"),
        ("{{ value | bare }}", {"value": "a b"}, "not a plain name"),
    ],
)
def test_a_template_with_a_fault(tmp_path: Path, text: str, values: dict[str, object], expected: str) -> None:
    with pytest.raises(SpecError, match=expected) as caught:
        renderer(tmp_path, "t.j2", text).render("t.j2", values)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "text",
    [
        "{{ cycler.__init__.__globals__.os.popen('id').read() }}",
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ values.update(a=1) }}",
        "{% for each in range(999999999) %}{% endfor %}",
    ],
)
def test_a_template_of_others_only_reads_the_values_it_is_given(tmp_path: Path, text: str) -> None:
    with pytest.raises(SpecError, match=r"t\.j2(:1)?: template: "):
        renderer(tmp_path, "t.j2", text).render("t.j2", {"values": {}})


@pytest.mark.parametrize("stranger", ["another user", "everybody"])
@pytest.mark.parametrize("kind", ["clusters", "jobs", "envs", "templates"])
def test_what_others_may_write_is_not_taken_from_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stranger: str, kind: str
) -> None:
    folder = tmp_path / kind
    folder.mkdir()
    monkeypatch.chdir(tmp_path)
    Library()
    if stranger == "everybody":
        folder.chmod(0o777)
    elif os.geteuid() == 0:
        os.chown(folder, 70_001, 70_001)
    else:
        pytest.skip("only root can give a directory to another user")
    with pytest.raises(
        UsageError, match=rf"{kind}: (other users can write to it|it belongs to another user), and its commands"
    ):
        Library()
    assert Library([Path()]).path[0] == Path()


def test_a_template_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"no template 'sbatch/cell\.sbatch\.j2'; did you mean 'sbatch/cells"):
        Renderer(Library()).render("sbatch/cell.sbatch.j2", {})


@pytest.mark.parametrize(
    "line",
    ["export WANDB_API_KEY=abc", "HF_TOKEN=x run", "#SBATCH --export=NONE,DB_PASSWORD=x", "env A=1 MY_PASSWORD_2=x"],
)
def test_secrets_are_refused(tmp_path: Path, line: str) -> None:
    with pytest.raises(UsageError, match="the name looks like a secret"):
        renderer(tmp_path, "t.j2", line).render("t.j2", {})


def test_what_only_reads_a_secret_is_fine(tmp_path: Path) -> None:
    assert renderer(tmp_path, "t.j2", 'run --key "$API_KEY"').render("t.j2", {})


def test_a_site_overrides_one_block(tmp_path: Path) -> None:
    text = '{% extends "packaged/sbatch/cells.sbatch.j2" %}{% block preamble %}{{ super() }}ulimit -c 0\n{% endblock %}'
    renderer(tmp_path, "sbatch/cells.sbatch.j2", text)
    from hpcrl.plan.make import UserChoices, make_plan

    files = make_plan(Library([tmp_path]), "sol", None, UserChoices(account="lab")).files
    script = str(files["scripts/sol-dqn-torch-cpu-1.sbatch"])
    assert "export SLURM_EXPORT_ENV=ALL" in script
    assert "\nulimit -c 0\n" in script
    assert "#SBATCH --partition=public" in script


def test_a_block_that_exists_nowhere_is_a_fault(tmp_path: Path) -> None:
    folder = tmp_path / "templates/sbatch"
    folder.mkdir(parents=True)
    mine = folder / "cells.sbatch.j2"
    mine.write_text('{% extends "packaged/sbatch/cells.sbatch.j2" %}\n{% block preamle %}\necho hi\n{% endblock %}\n')
    renderer = Renderer(Library([tmp_path]))
    with pytest.raises(
        SpecError,
        match=r"cells\.sbatch\.j2:2: template: packaged/sbatch/cells\.sbatch\.j2 has no block 'preamle'; did you mean 'preamble'\?",
    ):
        renderer.check("sbatch/cells.sbatch.j2")
    mine.write_text('{% extends "sbatch/cells.sbatch.j2" %}\n')
    with pytest.raises(
        SpecError, match=r"cells\.sbatch\.j2:1: template: extends itself: write packaged/sbatch/cells\.sbatch\.j2"
    ):
        renderer.check("sbatch/cells.sbatch.j2")
    mine.write_text(
        '{% extends "packaged/sbatch/cells.sbatch.j2" %}\n{% block preamble %}{% block own %}{% endblock %}{% endblock %}\n'
    )
    renderer.check("sbatch/cells.sbatch.j2")


def test_a_variable_s_name_is_ascii() -> None:
    """A shell expands HOME in $HOMEé; a variable of the longer name would be empty."""
    assert _expandable("$HOMEé/${X}/$é") == "${HOME}é/${X}/\\$é"
