from __future__ import annotations

import hashlib
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.version import Version
from ruamel.yaml import YAML

from hpcrl import pins
from hpcrl.environments import build, lock
from hpcrl.environments.commands import HashMismatch
from hpcrl.errors import HpcrlError, SpecError, UsageError
from hpcrl.formats.plan import Environment
from hpcrl.plan.environments import render_environment, unchecked_of
from hpcrl.spec.hashes import read_hashes
from hpcrl.spec.library import Library, packaged
from hpcrl.spec.rendering import Renderer
from tests.builders import dqn_study, planned

PACKAGED = ("jax", "mxnet", "numpy", "tensorflow", "torch", "torch-jax")


@pytest.fixture
def wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A wheel in a directory that uv and pip find wheels in, and no index."""
    folder = tmp_path / "wheels"
    folder.mkdir()
    path = folder / "tiny-1.0-py3-none-any.whl"
    info = "tiny-1.0.dist-info"
    files = {
        "tiny.py": "there = True\n",
        f"{info}/METADATA": "Metadata-Version: 2.1\nName: tiny\nVersion: 1.0\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    files[f"{info}/RECORD"] = "".join(f"{name},,\n" for name in [*files, f"{info}/RECORD"])
    with zipfile.ZipFile(path, "w") as archive:
        for name, text in files.items():
            archive.writestr(name, text)
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("UV_NO_INDEX", "1")
    return path


def tiny(digest: str | None, **changes: Any) -> Environment:
    pin = pins.Requirement("tiny==1.0", () if digest is None else (digest,))
    content: dict[str, Any] = {
        "key": "tiny-cpu-1", "name": "tiny", "flavour": "cpu", "horovod": False, "python": f"3.{sys.version_info[1]}",
        "imports": ["tiny"], "find_links": [], "conda": "", "requirements": pin.to_line() + "\n",
    }  # fmt: skip
    return Environment(**content | changes)


@pytest.mark.parametrize("manager", ["uv", "venv"])
def test_a_wheel_with_another_hash_is_refused(wheel: Path, tmp_path: Path, manager: str) -> None:
    right = hashlib.sha256(wheel.read_bytes()).hexdigest()
    site = {"manager": manager, "root": str(tmp_path / "environments")}
    with pytest.raises(
        HashMismatch, match=rf"tiny==1\.0: the package index has a file that envs/hashes/ does not allow .*{right}"
    ) as refusal:
        build.build_all([tiny("0" * 64)], site, lambda key, text: None)
    assert "\n" not in str(refusal.value)
    path = tmp_path / "environments/tiny-cpu-1"
    assert not build.is_built(path)
    assert not list(path.rglob("tiny.py"))
    said: list[str] = []
    build.build_all([tiny(right)], site, lambda key, text: said.append(text))
    assert list(path.rglob("tiny.py"))
    assert said[-1] == "built: tiny imports"
    assert not any("not checked" in text for text in said)


def test_one_of_several_hashes_is_enough(wheel: Path, tmp_path: Path) -> None:
    """As of torch's wheels for two architectures."""
    right = hashlib.sha256(wheel.read_bytes()).hexdigest()
    both = f"tiny==1.0 --hash=sha256:{'0' * 64} --hash=sha256:{right}\n"
    site = {"manager": "uv", "root": str(tmp_path / "environments")}
    (built,) = build.build_all([tiny(None, requirements=both)], site, lambda key, text: None)
    assert built.made


@pytest.mark.parametrize("manager", ["uv", "venv"])
def test_an_environment_without_hashes_is_built_and_says_so(wheel: Path, tmp_path: Path, manager: str) -> None:
    said: list[str] = []
    site = {"manager": manager, "root": str(tmp_path / "environments")}
    build.build_all([tiny(None)], site, lambda key, text: said.append(text))
    assert (
        "its packages are not checked by hashes, because those of tiny==1.0 are missing: run `hpcrl env lock tiny`"
        in said
    )


def test_a_hash_that_is_there_is_checked_though_another_is_missing(wheel: Path, tmp_path: Path) -> None:
    some = f"other==2.0 ; sys_platform == 'win32'\ntiny==1.0 --hash=sha256:{'0' * 64}\n"
    site = {"manager": "uv", "root": str(tmp_path / "environments")}
    with pytest.raises(HashMismatch):
        build.build_all([tiny(None, requirements=some)], site, lambda key, text: None)


def test_what_a_source_build_is_made_of_counts_too() -> None:
    digest = "0" * 64
    assert not tiny(digest, build="horovod==0.28.1").hashed
    assert tiny(digest, build="horovod==0.28.1").unhashed() == ["horovod==0.28.1"]
    assert tiny(digest, build="horovod==0.28.1", build_hashes=[digest]).hashed


def test_the_lock_asks_what_the_installer_asks(wheel: Path) -> None:
    assert lock.ask_index(["tiny==1.0"], "3.11", []) == {"tiny==1.0": {hashlib.sha256(wheel.read_bytes()).hexdigest()}}
    with pytest.raises(HpcrlError, match="cannot get hashes from the package index"):
        lock.ask_index(["tiny==2.0"], "3.11", [])


def test_a_lock_of_an_environment_of_ones_own(wheel: Path, tmp_path: Path) -> None:
    """Hashes of the same pin stay, of other pins go; the installer then checks them."""
    names = ["numpy", "psutil"]
    for name in names:
        content = wheel.read_bytes()
        (wheel.parent / f"{name}-1.0-py3-none-any.whl").write_bytes(content.replace(b"tiny", name[:4].encode()))
    folder = tmp_path / "envs"
    folder.mkdir()
    packages = ", ".join(f"{name}==1.0" for name in ["tiny", *names])
    (folder / "own.yaml").write_text(
        f"name: own\ntitle: mine\npython: '3.11'\nflavours: {{cpu: {{packages: [{packages}]}}}}\n"
    )
    library = Library([tmp_path])
    assert library.hashes("own") == {}
    first = render(library, "own")
    assert unchecked_of([first])[0].startswith(
        "environment own: its packages are not checked by hashes, because those of"
    )
    file = library.hash_file("own")
    assert file == folder / "hashes/own.txt"
    file.parent.mkdir()
    file.write_text(f"tiny==1.0 \\\n  --hash=sha256:{'0' * 64}\ntiny==0.9 --hash=sha256:{'1' * 64}\n")
    assert lock.lock_environment(library.environment("own"), library.hashes("own"), file) == 3
    found = library.hashes("own")
    assert found["tiny==1.0"] == tuple(sorted(["0" * 64, hashlib.sha256(wheel.read_bytes()).hexdigest()]))
    assert set(found) == {"tiny==1.0", "numpy==1.0", "psutil==1.0"}
    again = render(library, "own")
    assert again.hashed
    assert not unchecked_of([again])
    assert again.key == first.key


def render(
    library: Library, name: str, flavour: Any = "cpu", horovod: bool = False, hashed: bool = True
) -> Environment:
    profile = library.cluster("workstation")
    hashes = library.hashes(name) if hashed else {}
    return render_environment(Renderer(library), profile, library.environment(name), flavour, horovod, hashes)


@pytest.mark.parametrize("name", [*PACKAGED, "cirrus-2022"])
def test_every_packaged_pin_has_its_hashes_and_the_key_does_not_know_them(name: str) -> None:
    library = Library()
    spec = library.environment(name)
    for flavour in spec.flavours:
        for horovod in (False, True) if spec.horovod else (False,):
            found = render(library, name, flavour, horovod)
            assert found.unhashed() == []
            plain = render(library, name, flavour, horovod, hashed=False)
            assert found.key == plain.key
            assert not plain.hashed
            assert pins.without_hashes(found.requirements) == pins.without_hashes(plain.requirements)
            (of_pip,) = (each["pip"] for each in YAML().load(found.conda)["dependencies"] if isinstance(each, dict))
            of_pip = [each for each in of_pip if not each.startswith("--find-links")]
            assert of_pip == [each.to_line() for each in pins.read_requirements(found.requirements)]


@pytest.mark.parametrize("flavour", ["cpu", "cuda"])
def test_the_paper_s_environment_is_rendered_with_the_reason_why_it_is_not_built(flavour: str) -> None:
    found = render(Library(), "cirrus-2022", flavour, hashed=False)
    stated = "gym 0.19.0, matplotlib 3.3.4, numpy 1.19.2, pandas 1.1.5, pip 21.2.2, psutil 5.8.0, pynvml 11.4.1, tensorboard 1.15.0, "
    stated += "tensorboardX 1.6, tensorflow 1.15.0, torch 1.4.0"  # Table 3.10
    wanted = [Requirement(each.replace(" ", "==")) for each in stated.split(", ")]
    assert [Requirement(each.pin) for each in pins.read_requirements(found.requirements)] == [
        Requirement(str(each)) for each in wanted
    ]
    for text in (found.conda, found.requirements):
        assert "# Not built by hpcrl: it needs Python 3.7" in text
        assert "CUDA 9.2 to 10.1" in text
    content = YAML().load(found.conda)
    assert set(content) == {"channels", "dependencies"}
    *conda, of_pip = content["dependencies"]
    assert conda == ["python=3.7", "pip", *(["cudatoolkit=11.6"] if flavour == "cuda" else [])]
    assert [Requirement(each) for each in of_pip["pip"]] == wanted
    for each in wanted:
        (specifier,) = each.specifier
        assert str(Version(specifier.version)) == specifier.version


def test_an_environment_of_a_framework_may_be_a_description_only(tmp_path: Path) -> None:
    text = (packaged() / "envs/numpy.yaml").read_text()
    (tmp_path / "envs").mkdir()
    (tmp_path / "envs/numpy.yaml").write_text(text + "not_built: no reason\n")
    with pytest.raises(UsageError, match="environment numpy is not built: no reason: choose another environment"):
        planned(tmp_path / "p", dqn_study(), path=tmp_path)


def test_the_keys_of_packaged_environments_stay() -> None:
    """They name directories that stand, and are part of the ids of cells."""
    keys = {render(Library(), name).key for name in PACKAGED}
    assert {"numpy-cpu-cd7a1c9b9c", "jax-cpu-4a277f48be", "torch-cpu-76ae288c31"} <= keys


def test_no_file_of_hashes_names_an_index() -> None:
    for name in PACKAGED:
        text = Library().hash_file(name).read_text()
        assert "://" not in text
        assert set(Library().hashes(name)) == set(wanted(name))


def wanted(name: str) -> set[str]:
    spec = Library().environment(name)
    every = [pin for flavour in spec.flavours for pin in spec.pins(flavour, True)]
    every += [spec.horovod.build] if spec.horovod and spec.horovod.build else []
    return {pins.name_of(pin) for pin in every}


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("a==1\n", 1),
        ("# made\n\na==1 --hash=sha256:00\n", 3),
        (f"a==1 \\\n  --hash=sha256:{'0' * 64} \\\n  --hash=sha256:{'1' * 64}\nb==2 --hash=md5:{'0' * 32}\n", 4),
        (f"a>=1 --hash=sha256:{'0' * 64}\n", 1),
        (f"--index-url https://elsewhere/simple --hash=sha256:{'0' * 64}\n", 1),
    ],
)
def test_a_file_of_hashes_with_a_fault_says_which_line(tmp_path: Path, text: str, line: int) -> None:
    file = tmp_path / "x.txt"
    file.write_text(text)
    with pytest.raises(SpecError, match=rf"x\.txt:{line}: "):
        read_hashes(file)


@pytest.mark.parametrize(
    ("wheel", "fits"),
    [
        ("a-1-py3-none-any.whl", True),
        ("a-1-py2.py3-none-any.whl", True),
        ("a-1-1-cp311-cp311-manylinux2014_x86_64.manylinux_2_17_x86_64.whl", True),
        ("a-1-cp36-abi3-manylinux1_x86_64.whl", True),
        ("a-1-cp312-abi3-linux_aarch64.whl", False),
        ("a-1-cp312-cp312-linux_x86_64.whl", False),
        ("a-1-cp311-cp311-musllinux_1_2_x86_64.whl", False),
        ("a-1-cp311-cp311-win_amd64.whl", False),
        ("a-1-cp311-cp311-macosx_11_0_arm64.whl", False),
        ("a-1-py2-none-any.whl", False),
        ("a.tar.gz", False),
    ],
)
def test_which_wheels_count(wheel: str, fits: bool) -> None:
    assert lock.fits(wheel, "3.11") is fits
