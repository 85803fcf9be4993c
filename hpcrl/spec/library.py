"""Find profiles, studies, environments and templates along one search path. The first match is used."""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from hpcrl.errors import SpecError, UsageError, suggestion, written
from hpcrl.spec.claims import Claims, read_claims
from hpcrl.spec.cluster import ClusterProfile
from hpcrl.spec.document import Document, display, read_document, validate
from hpcrl.spec.environment import SoftwareEnvironment
from hpcrl.spec.explain import Key, dotted
from hpcrl.spec.hashes import read_hashes
from hpcrl.spec.overrides import overridden
from hpcrl.spec.study import Study
from hpcrl.spec.surroundings import Standing
from hpcrl.spec.user import config_directory
from hpcrl.surroundings import NONE

Kind = Literal["clusters", "jobs", "jobs/claims", "envs", "templates"]
_WORDS: dict[Kind, str] = {
    "clusters": "cluster profile",
    "jobs": "study",
    "jobs/claims": "paper's claims",
    "envs": "environment",
    "templates": "template",
}
SITE_DIRECTORY = Path("/etc/hpcrl")


class Library:
    """The files that people wrote, found along a search path.

    Order: `--path`, ``$HPCRL_PATH``, the working directory, the user's configuration directory, the
    site's directory (``$HPCRL_SITE``, else /etc/hpcrl), the packaged ones.

    Raises:
        UsageError: a named directory is not a directory, or the working directory has such files of another user, whose
            commands would run as this user.
    """

    def __init__(self, extra: Sequence[Path] = ()) -> None:
        named = [Path(part) for part in os.environ.get("HPCRL_PATH", "").split(os.pathsep) if part]
        site = Path(os.environ.get("HPCRL_SITE") or SITE_DIRECTORY)
        for path in extra:
            if not path.is_dir():
                raise UsageError(f"--path {path}: is not a directory")
        here = Path.cwd()
        if not any(here.samefile(folder) for folder in [*extra, *named, packaged()] if folder.is_dir()):
            _check_owner(here)
        self.path = [*extra, *named, here, config_directory(), site, packaged()]

    def files(self, kind: Kind, suffix: str) -> dict[str, Path]:
        """Return the file of each name that the search finds first, sorted by name."""
        files: dict[str, Path] = {}
        for base in self.path:
            folder = base / kind
            others = [base / other for other in _WORDS if other.startswith(f"{kind}/")]
            if folder.is_dir():
                for file in sorted(folder.rglob(f"*{suffix}")):
                    if not any(file.is_relative_to(other) for other in others):
                        files.setdefault(str(file.relative_to(folder)).removesuffix(suffix), file)
        return dict(sorted(files.items()))

    def find(self, kind: Kind, name: str, skip: Sequence[Path] = ()) -> Path:
        """Return the file of a name, or of a path to a YAML file; `skip` leaves out files already in use.

        Raises:
            UsageError: the file does not exist; the message gives the nearest name.
        """
        if name.endswith((".yaml", ".yml")):
            if not Path(name).is_file():
                raise UsageError(f"{name}: no such file")
            return Path(name)
        for base in self.path:
            file = base / kind / f"{name}.yaml"
            if file.is_file() and file.resolve() not in skip:
                return file
        known = self.files(kind, ".yaml")
        if Path(f"{name}.yaml").is_file():
            raise UsageError(f"no {_WORDS[kind]} {name!r}: for the file {name}.yaml write {name}.yaml")
        raise UsageError(f"no {_WORDS[kind]} {name!r}; {suggestion(name, known)}")

    def document(self, kind: Kind, name: str, _seen: tuple[Path, ...] = ()) -> Document:
        """Read a file and all files that it extends. A file may extend the next file of the same name on the path."""
        file = self.find(kind, name, skip=_seen)
        if file.resolve() in _seen:
            raise UsageError(f"{file} extends itself: name another file in `extends`")
        document = read_document(file)
        if "extends" not in document.data:
            return document
        base = document.data["extends"]
        at = document.origin(("extends",))
        if not isinstance(base, str):
            raise SpecError(
                [f"{at.file}:{at.line}: extends: expected the name of a {_WORDS[kind]}, got {written(base)}"]
            )
        seen = (*_seen, file.resolve())
        try:
            below = self.document(kind, base, seen)
        except SpecError:
            raise
        except UsageError as error:
            raise SpecError([f"{at.file}:{at.line}: extends: {error}"]) from None
        data = {key: value for key, value in document.data.items() if key != "extends"}
        return Document(data, document.origins).merged_over(below)

    def cluster(self, name: str) -> ClusterProfile:
        return validate(ClusterProfile, self.document("clusters", name))

    def study(self, name: str, settings: Sequence[str] = ()) -> Study:
        """Read a study. `settings` are ``key=value`` texts that replace values of the file.

        In the result, the `workdir` of a command is absolute, or None in a packaged study without one. The path and the image
        of an existing environment are absolute, too, but keep their variables, which are expanded on the cluster.
        """
        document = self._study_document(name, settings)
        study = validate(Study, document)
        if isinstance(study.environment, Standing):
            standing = _located(study.environment, document)
            study = study.model_copy(update={"environment": standing})
        elif study.environment not in (None, NONE):
            try:
                self.find("envs", study.environment)
                self.environment(study.environment).check_is_for_cells()
            except SpecError:
                raise
            except UsageError as error:
                raise SpecError([f"{document.origin(('environment',)).where}: environment: {error}"]) from None
        if study.workload.command is None:
            return study
        place = _workdir(study.workload.workdir, document, self.find("jobs", name))
        return study.model_copy(update={"workload": study.workload.model_copy(update={"workdir": place})})

    def _study_document(self, name: str, settings: Sequence[str]) -> Document:
        return overridden(self.document("jobs", name), settings)

    def places_in_study(self, name: str, paths: Sequence[Key], settings: Sequence[str] = ()) -> tuple[str, ...]:
        """Return the place of each value of a study as ``file:line: key``. A value that has none is at the nearest that encloses it."""
        if not paths:
            return ()
        document = self._study_document(name, settings)
        return tuple(f"{document.origin(path).where}: {dotted(path)}".removesuffix(": ") for path in paths)

    def claims(self, paper: str) -> Claims:
        return read_claims(self.document("jobs/claims", paper))

    def claims_of(self, paper: str | None) -> Claims | None:
        """Return the claims of a study's `paper`, or None if there is no file of them.

        Raises:
            SpecError: the file has faults.
        """
        return self.claims(paper) if paper and paper in self.files("jobs/claims", ".yaml") else None

    def no_claims(self, paper: str | None) -> str:
        """Say that there is no file of the claims of a study's `paper`; "" if there is one, or if the study names no paper."""
        if not paper or paper in (known := self.files("jobs/claims", ".yaml")):
            return ""
        return (
            f"no claims of paper {paper!r} ({suggestion(paper, known)}): the report does not judge them, because the search path has "
            f"no jobs/claims/{paper}.yaml"
        )

    def environment(self, name: str) -> SoftwareEnvironment:
        return validate(SoftwareEnvironment, self.document("envs", name))

    def hashes(self, name: str) -> dict[str, tuple[str, ...]]:
        """Return the allowed SHA-256 digests of each pin of an environment (``envs/hashes/NAME.txt``), empty without that file.

        Raises:
            SpecError: a line of the file is not a pin with hashes.
        """
        file = next((path for path in self._hash_files(name) if path.is_file()), None)
        return read_hashes(file) if file else {}

    def hash_file(self, name: str) -> Path:
        """Return the file for the hashes of an environment, which is beside the environment's own file."""
        return next(iter(self._hash_files(name)))

    def _hash_files(self, name: str) -> list[Path]:
        own = self.find("envs", name).parent
        stem = Path(name).stem if name.endswith((".yaml", ".yml")) else name
        return [folder / "hashes" / f"{stem}.txt" for folder in (own, *(base / "envs" for base in self.path))]

    def template_directories(self) -> list[Path]:
        return [base / "templates" for base in self.path if (base / "templates").is_dir()]

    def where(self, kind: Kind, name: str) -> str:
        return display(self.find(kind, name))


def _workdir(wanted: str | None, document: Document, study: Path) -> str | None:
    """Return the directory of a study's code: relative to the file that names it; by default the study's directory."""
    if wanted is None and study.resolve().is_relative_to(packaged()):
        return None
    if wanted is None:
        base = study.resolve().parent
    else:
        named_in = Path(document.origin(("workload", "workdir")).file)
        base = named_in.resolve().parent if named_in.is_file() else Path.cwd()  # --set
    # The project of a study in jobs/ is the parent of jobs/.
    base = base.parent if base.name == "jobs" else base
    return os.path.normpath(base / Path(wanted or "").expanduser())


def _located(standing: Standing, document: Document) -> Standing:
    """Return an environment with its path or image absolute: relative to the file that names it."""
    changes: dict[str, str] = {}
    for name in ("path", "container"):
        text = getattr(standing, name)
        if text is None or "://" in text:
            continue
        if text == "~" or text.startswith("~/"):
            text = f"$HOME{text[1:]}"
        if not text.startswith("$"):
            named_in = Path(document.origin(("environment", name)).file)
            base = named_in.resolve().parent if named_in.is_file() else Path.cwd()  # --set
            text = os.path.normpath((base.parent if base.name == "jobs" else base) / text)
        changes[name] = text
    return standing.model_copy(update=changes)


def _check_owner(here: Path) -> None:
    for kind in _WORDS:
        folder = here / kind
        if not folder.is_dir():
            continue
        facts = [folder.lstat(), folder.stat()]
        if all(status.st_uid in (os.getuid(), 0) for status in facts) and not facts[1].st_mode & stat.S_IWOTH:
            continue
        why = "other users can write to it" if facts[1].st_mode & stat.S_IWOTH else "it belongs to another user"
        raise UsageError(
            f"{folder}: {why}, and its commands would run as you: work in a directory of your own, or give --path . if you trust it"
        )


def packaged() -> Path:
    """Return the directory of the files that ship with hpcrl (in a checkout: its top level)."""
    package = Path(__file__).resolve().parent.parent
    installed = package / "library"
    return installed if installed.is_dir() else package.parent
