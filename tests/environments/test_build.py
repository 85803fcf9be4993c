from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hpcrl.environments import build, check, horovod
from hpcrl.environments.commands import call
from hpcrl.errors import HpcrlError, UsageError
from hpcrl.formats.ledger import Ledger
from hpcrl.formats.plan import Environment, read_plan
from hpcrl.pins import name_of
from hpcrl.spec.library import Library
from tests.builders import built_environment, dqn_study, granted, planned
from tests.conftest import Shown


def environment(**changes: Any) -> Environment:
    content: dict[str, Any] = {
        "key": "tiny-cpu-1", "name": "tiny", "flavour": "cpu", "horovod": False, "python": "3.11", "imports": ["six"],
        "find_links": [], "conda": "", "requirements": "six==1.17.0\n",
    }  # fmt: skip
    return Environment(**content | changes)


def built(root: Path, each: Environment, said: list[str] | None = None) -> build.Built:
    words = said if said is not None else []
    (found,) = build.build_all([each], {"manager": "uv", "root": str(root)}, lambda key, text: words.append(text))
    return found


@pytest.mark.slow
def test_built_once_checked_and_marked(tmp_path: Path) -> None:
    said: list[str] = []
    first = built(tmp_path, environment(), said)
    assert first.made
    assert said[-1] == "built: six 1.17.0"
    again = built(tmp_path, environment(), said)
    assert not again.made
    assert said[-1] == "is there"


@pytest.mark.slow
def test_a_build_that_was_interrupted_begins_anew(tmp_path: Path) -> None:
    """A full disk leaves a package whose metadata is there and whose modules are not: an installer takes it for installed."""
    path = built(tmp_path, environment()).path
    (path / build.MARKER).unlink()
    next(path.glob("lib/python*/site-packages/six.py")).unlink()
    assert built(tmp_path, environment()).made


def test_an_unfinished_build_that_cannot_be_removed_is_named(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "tiny-cpu-1").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(HpcrlError, match=r"tiny-cpu-1: an unfinished build cannot be removed: .*link.*: remove it, or"):
        built(tmp_path, environment())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"requirements": "six==99.0\n"}, "uv failed: .*six==99.0"),
        ({"imports": ["seven"]}, "was built, but does not work: .*No module named 'seven'"),
        ({"python": "2.4"}, "uv failed"),
    ],
)
def test_what_cannot_be_built_says_why_and_does_not_count(
    tmp_path: Path, changes: dict[str, Any], expected: str
) -> None:
    with pytest.raises(HpcrlError, match=expected):
        built(tmp_path, environment(**changes))
    assert not build.is_built(tmp_path / "tiny-cpu-1")


def test_a_source_build_without_its_tools_says_what_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    settings = {"HOROVOD_WITH_PYTORCH": "1"}
    with pytest.raises(
        HpcrlError, match=r"Horovod is built from source, but tools are missing here \(no-such-compiler\): load"
    ):
        horovod.wheel(environment(build="horovod==0.28.1", settings=settings), tmp_path, tmp_path, {}, ())


def test_horovod_for_gpus_wants_the_cuda_of_its_packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("nvcc", "g++", "cmake", "mpicxx"):
        (tmp_path / name).write_text("#!/bin/sh\necho Cuda compilation tools, release 13.0, V13.0.88")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    wanted = environment(build="horovod==0.28.1", flavour="cuda", requirements="nvidia-cuda-runtime-cu12==12.9.79\n")
    with pytest.raises(HpcrlError, match="expected nvcc of CUDA 12, as its packages, got CUDA 13: load"):
        horovod.wheel(wanted, tmp_path, tmp_path, {}, ())


def test_a_failed_build_says_why_and_where_the_rest_is(tmp_path: Path) -> None:
    said = "note\nx.cc:3:1: fatal error: no.h: No such file\n  3 | #include\nmake: Error 2\nnote: a subprocess\nFailed"
    with pytest.raises(HpcrlError, match=r"failed: x.cc:3:1: fatal error: no.h: No such file .*\(full output: .*log\)"):
        call(["sh", "-c", f"echo '{said}' >&2; exit 1"], failed="failed", log=tmp_path / "log")
    assert (tmp_path / "log").read_text().strip() == said
    with pytest.raises(HpcrlError, match=r"sh failed: no output$"):
        call(["sh", "-c", "exit 1"])


def test_the_compiler_between_horovod_and_the_compiler(tmp_path: Path) -> None:
    """C++17 whatever is asked for, no debug information, TensorFlow's XLA file empty; everything else as it came."""
    wrapper = tmp_path / "c++"
    wrapper.write_text(horovod._COMPILER)
    wrapper.chmod(0o755)
    words = ["-std=c++14", "-g", "-O2", "-DNAME='a b'", "/src/xla_mpi_ops.cc", "-std=gnu++11", "-o", "out file.o"]
    done = subprocess.run(
        [wrapper, *words], env={**os.environ, "HPCRL_CXX": "printf"}, capture_output=True, text=True, check=True
    )
    assert done.stdout.startswith("-std=c++17")
    done = subprocess.run(
        [wrapper, "%s\n", *words], env={**os.environ, "HPCRL_CXX": "printf"}, capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines() == [
        "-std=c++17", "-O2", "-DNAME='a b'", f"{tmp_path}/empty.cc", "-std=c++17", "-o", "out file.o",
    ]  # fmt: skip


@pytest.mark.slow
def test_an_environment_that_was_changed_is_not_what_its_lock_says(tmp_path: Path) -> None:
    path = built(tmp_path, environment()).path
    with pytest.raises(HpcrlError, match=r"six: expected version 1\.16\.0 \(the lock\), got 1\.17\.0"):
        check.check(environment(requirements="# pins\nsix==1.16.0\n"), path)
    with pytest.raises(HpcrlError, match=r"seven: expected version 1 \(the lock\), got none"):
        check.check(environment(requirements="six==1.17.0\nseven==1\n"), path)


@pytest.mark.slow
@pytest.mark.skipif(os.getuid() != 0, reason="another user's files need root")
@pytest.mark.parametrize("inside", ["", build.MARKER, "bin", "bin/python"])
def test_an_environment_of_somebody_else_is_not_believed(tmp_path: Path, inside: str) -> None:
    path = tmp_path / "tiny-cpu-1"
    (path / "bin").mkdir(parents=True)
    (path / build.MARKER).write_text("{}")
    (path / "bin/python").symlink_to("/usr/bin/python3")
    assert build.is_built(path)
    os.chown(path / inside, 65534, 65534, follow_symlinks=False)
    with pytest.raises(
        HpcrlError, match="belongs to nobody, and its programs would run as you: set HPCRL_ENVIRONMENTS"
    ):
        build.is_built(path)
    assert build.is_built(path, ["nobody", "no-such-user"])
    with pytest.raises(HpcrlError, match="belongs to nobody"):
        build.build_all([environment()], {"manager": "uv", "root": str(tmp_path)}, lambda key, text: None)
    with pytest.raises(HpcrlError, match="belongs to nobody"):
        build.not_built([environment()], {"root": str(tmp_path)})


def test_an_environment_that_everybody_may_write(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.mkdir(mode=0o755)
    (path / build.MARKER).write_text("{}")
    path.chmod(0o775)
    assert build.is_built(path)
    path.chmod(0o777)
    with pytest.raises(HpcrlError, match="everybody may write to it"):
        build.is_built(path)


def test_a_lock_is_not_written_through(tmp_path: Path) -> None:
    """In a root that everybody may write, a link in the lock's place once emptied what it led to."""
    mine = tmp_path / "mine"
    mine.write_text("precious")
    (tmp_path / ".tiny-cpu-1.lock").symlink_to(mine)
    with pytest.raises(OSError), build._lock(tmp_path / ".tiny-cpu-1.lock"):
        pass
    assert mine.read_text() == "precious"


def test_an_environment_for_gpus_is_built_where_no_driver_is(tmp_path: Path) -> None:
    """As MXNet's, which does not import without the driver; with the cpu flavour the same is an error."""
    path = built(tmp_path, environment()).path
    (path / "lib/python3.11/site-packages/needy.py").write_text(
        "raise OSError('libcuda.so.1: cannot open shared object file: No such file or directory')"
    )
    found = check.check(environment(flavour="cuda", imports=["needy"]), path)
    assert str(found) == "installed, not tried: the GPU driver (libcuda.so.1) is missing here"
    with pytest.raises(HpcrlError, match="libcuda"):
        check.check(environment(imports=["needy"]), path)
    with pytest.raises(HpcrlError, match=r"expected version 2 \(the lock\)"):
        check.check(environment(flavour="cuda", imports=["needy"], requirements="six==2\n"), path)


@pytest.mark.slow
def test_a_pin_may_refuse_local_versions(tmp_path: Path) -> None:
    path = built(tmp_path, environment(requirements="six===1.17.0\n")).path
    with pytest.raises(HpcrlError, match=r"six: expected version 1\.17\.0\+cpu \(the lock\), got 1\.17\.0"):
        check.check(environment(requirements="six===1.17.0+cpu\n"), path)


def test_libraries_are_linked_into_the_package_that_looks_for_them(tmp_path: Path) -> None:
    packages = tmp_path / "lib/python3.11/site-packages"
    for name in ("nvidia/cudnn/lib/libcudnn.so.8", "nvidia/nccl/lib/libnccl.so.2", "mxnet/libmxnet.so"):
        (packages / name).parent.mkdir(parents=True, exist_ok=True)
        (packages / name).write_text(name)
    for _ in range(2):
        build.link_libraries(environment(libraries={"mxnet": "nvidia/*/lib"}), tmp_path)
    assert sorted(path.name for path in (packages / "mxnet").iterdir()) == [
        "libcudnn.so.8", "libmxnet.so", "libnccl.so.2",
    ]  # fmt: skip
    assert (packages / "mxnet/libcudnn.so.8").read_text() == "nvidia/cudnn/lib/libcudnn.so.8"
    assert (packages / "mxnet/libcudnn.so.8").readlink() == Path("../nvidia/cudnn/lib/libcudnn.so.8")


def test_the_directory_of_environments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HPCRL_ENVIRONMENTS", raising=False)
    monkeypatch.setenv("WHERE", "/somewhere")
    assert build.root_of({"root": "$WHERE/e"}) == Path("/somewhere/e")
    with pytest.raises(UsageError, match="a variable in it is not set: set it"):
        build.root_of({"root": "/project/$HPCRL_NOT_SET/e"})
    monkeypatch.setenv("HPCRL_ENVIRONMENTS", "/mine")
    assert build.root_of({"root": "/project/$HPCRL_NOT_SET/e"}) == Path("/mine")
    (tmp_path / "file").touch()
    monkeypatch.setenv("HPCRL_ENVIRONMENTS", str(tmp_path / "file" / "e"))
    with pytest.raises(HpcrlError, match="cannot be created"):
        build.build_all([environment()], {"manager": "uv", "root": "x"}, lambda key, text: None)


@pytest.mark.slow
@pytest.mark.parametrize("framework", ["numpy", "jax"])
def test_every_family_of_gymnasium_s_environments_that_studies_name_runs(framework: str) -> None:
    """Gymnasium imports a whole family with its first member: LunarLander needs what CarRacing needs."""
    ids = ["CartPole-v1", "MountainCar-v0", "LunarLander-v3", "HalfCheetah-v5", "InvertedPendulum-v5"]
    program = (
        f"import gymnasium\nfor name in {ids}:\n    e = gymnasium.make(name); e.reset(seed=0)\n"
        "    e.step(e.action_space.sample()); e.close()"
    )
    python = built_environment(framework).path / "bin/python"
    done = subprocess.run([python, "-c", program], capture_output=True, text=True, check=False)
    assert not done.returncode, done.stderr


def test_what_the_packaged_environments_pin_for_box2d() -> None:
    library = Library()
    for name in library.files("envs", ".yaml"):
        pins = {name_of(pin).partition("=")[0] for pin in library.environment(name).pins("cpu", horovod=False)}
        assert "box2d" not in pins or "pygame" in pins, name


def test_what_cannot_be_built_does_not_stop_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def manager(wanted: Environment, path: Path, *more: object) -> None:
        if wanted.key != "good-1":
            raise HpcrlError(f"{wanted.key}: uv failed: no such pin")
        path.mkdir()

    monkeypatch.setitem(build._MANAGERS, "uv", manager)
    monkeypatch.setattr(build, "check", lambda *given: check.Checked({}, {}))
    wanted = [environment(key=key) for key in ("bad-1", "good-1", "worse-1")]
    told = r"^2 environments of 3 cannot be built: bad-1: uv failed: no such pin; worse-1: uv failed: no such pin$"
    with pytest.raises(HpcrlError, match=told):
        build.build_all(wanted, {"manager": "uv", "root": str(tmp_path)}, lambda key, text: None)
    assert build.is_built(tmp_path / "good-1")


def test_a_submission_builds_what_its_cells_need(
    tmp_path: Path, hpcrl: Callable[..., Shown], monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = planned(tmp_path / "p", dqn_study(axes={"framework": ["numpy", "torch"]}, chain="staged"))
    numpy, torch = (one.key for one in read_plan(plan).environments)
    ledger = Ledger(plan, create=True)
    some = ledger.intend(granted(plan, "0", environments=(torch,))).token
    every = ledger.intend(granted(plan, "0")).token  # as older versions of hpcrl wrote it
    ledger.close()
    built: list[str] = []
    monkeypatch.setattr(build, "build_all", lambda wanted, site, say: built.extend(one.key for one in wanted))
    assert hpcrl("env", "create", "--plan", plan, "--submission", some).code == 0
    assert built == [torch]
    assert hpcrl("env", "create", "--plan", plan, "--submission", every).code == 0
    assert built == [torch, numpy, torch]
    assert hpcrl("env", "create", "--plan", plan, "--submission", "hpcrl-00000000-1-000000").code == 2
