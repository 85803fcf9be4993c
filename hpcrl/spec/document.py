"""Read YAML files and keep the file, line and source of every value.

A :class:`Document` is plain data plus, for each value's path, its :class:`Origin`. Documents merge
(``extends:``), and a merged value keeps the origin in its own file.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar, get_args, get_origin

from pydantic import BaseModel, ValidationError

from hpcrl.errors import SpecError, UsageError, suggestion, written
from hpcrl.spec.explain import Faults, Key, as_one, dotted, in_words

Sourced = tuple[str | None, str | None, str | None]  # title, date, address
_MOST_VALUES = 200_000
_STANDARD = "tag:yaml.org,2002:"
_TAGS = frozenset(f"{_STANDARD}{name}" for name in ("str", "int", "float", "bool", "null", "seq", "map"))
_TOO_DEEP = "is nested too deeply"
# Ends of faults of a whole mapping or list. If a value inside has a fault, that is the one to mend.
_CONTAINERS = ("got a mapping", "got a list")
Model = TypeVar("Model", bound=BaseModel)


@dataclass(frozen=True)
class Origin:
    """The place of a value (file and line), and the source that its author named."""

    file: str
    line: int
    source: str | None = None
    as_of: str | None = None
    url: str | None = None

    @property
    def where(self) -> str:
        """``file:line``; an option of the command line has no line."""
        return f"{self.file}:{self.line}" if self.line else self.file

    def __str__(self) -> str:
        parts = [self.where]
        if self.source:
            parts.append(f"source {self.source}" + (f" ({self.url})" if self.url else ""))
        if self.as_of:
            parts.append(f"as of {self.as_of}")
        return ", ".join(parts)


@dataclass(frozen=True)
class Document:
    """A YAML mapping and the origin of each of its values, by path from the root."""

    data: dict[str, Any]
    origins: dict[Key, Origin] = field(default_factory=dict)

    def origin(self, path: Key) -> Origin:
        """Return the origin of the value at `path`, or of the nearest value that encloses it."""
        for length in range(len(path), -1, -1):
            if (origin := self.origins.get(path[:length])) is not None:
                return origin
        return Origin("?", 0)

    def merged_over(self, base: Document) -> Document:
        """Merge this document over `base`: mappings merge key by key, every other value replaces the base's.

        A key ``+name`` adds its list to the base's list `name`.

        Raises:
            SpecError: the value of such a key, or the base's, is not a list.
        """
        origins = dict(base.origins)
        added: dict[Key, int] = {}
        data = _merge(base.data, self.data, (), origins, added)
        for path, length in added.items():
            if length < 0:
                where = next(origin for known, origin in self.origins.items() if known[: len(path)] == path).where
                raise SpecError([f"{where}: {dotted(path)}: expected a list to add to another list"])
        for path, origin in self.origins.items():
            origins[_moved(path, added)] = origin
        return Document(data, origins)


def _merge(
    base: Mapping[str, Any], top: Mapping[str, Any], path: Key, origins: dict[Key, Origin], added: dict[Key, int]
) -> dict[str, Any]:
    """Merge. `added` gets the path of each ``+name`` and the length of the base's list, -1 if one of the two is not a list."""
    merged = dict(base)
    for key, value in top.items():
        below = (*path, key)
        if isinstance(value, dict) and isinstance(merged.get(key), dict):
            merged[key] = _merge(merged[key], value, below, origins, added)
            continue
        if key.startswith("+"):
            before = merged.get(key[1:], [])
            both = isinstance(before, list) and isinstance(value, list)
            added[below] = len(before) if both else -1
            merged[key[1:]] = [*before, *value] if both else before
            continue
        for stale in [known for known in origins if known[: len(below)] == below]:
            del origins[stale]
        merged[key] = value
    return merged


def _moved(path: Key, added: Mapping[Key, int]) -> Key:
    """Return the path of a value of a ``+name`` in the merged list; any other path is unchanged."""
    for below, before in added.items():
        if path[: len(below)] == below:
            rest = path[len(below) :]
            place = (int(rest[0]) + before, *rest[1:]) if rest else ()
            return (*below[:-1], str(below[-1])[1:], *place)
    return path


def display(path: Path) -> str:
    """Return a path for messages: relative to the working directory if it is below that."""
    try:
        return str(path.resolve().relative_to(Path.cwd()))
    except ValueError:
        return str(path)


def read_document(path: Path) -> Document:
    """Read one YAML mapping with the line of every value.

    Raises:
        SpecError: the file is not YAML, repeats a key, or is not a mapping.
        UsageError: the file cannot be read.
    """
    name = display(path)
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise UsageError(f"{name}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise SpecError([f"{name}: is not UTF-8 text (byte {error.start}): save it as UTF-8"]) from None
    tree = _load(text, name)
    if not isinstance(tree, dict):
        raise SpecError([f"{name}:1: expected a mapping of keys to values, got {_kind(tree)}"])
    data, origins = _values(tree, Origin(name, 1))
    return _with_sources(Document(data, origins))


def read_value(text: str, name: str) -> Any:
    """Read one YAML value that is not in a file, such as an option's; `name` is its place in messages.

    Raises:
        SpecError: it is not YAML.
    """
    return _values(_load(text, name), Origin(name, 0))[0]


def _load(text: str, name: str) -> Any:
    from ruamel.yaml import YAML
    from ruamel.yaml.error import MarkedYAMLError, YAMLError

    try:
        return YAML(typ="rt").load(text)
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"{name}:{mark.line + 1}" if mark else name
        problem = " ".join(str(error.problem or error.context or "malformed").split())
        raise SpecError([f"{where}: not valid YAML: {problem}"]) from None
    except YAMLError as error:
        raise SpecError([f"{name}: not valid YAML: {' '.join(str(error).split())}"]) from None
    except ValueError:  # for example a number with more digits than Python reads
        raise SpecError([f"{name}: contains a number or a date that cannot be read"]) from None
    except RecursionError:
        raise SpecError([f"{name}: {_TOO_DEEP}"]) from None


def _values(tree: Any, root: Origin) -> tuple[Any, dict[Key, Origin]]:
    origins: dict[Key, Origin] = {(): root}
    problems: list[str] = []
    try:
        data = _plain(tree, (), root.file, origins, problems)
    except RecursionError:
        raise SpecError([f"{root.file}: {_TOO_DEEP}"]) from None
    if problems:
        raise SpecError(problems)
    return data, origins


def _kind(value: object) -> str:
    if value is None:
        return "nothing"
    return "a list" if isinstance(value, list) else f"the value {written(value)}"


def _plain(node: Any, path: Key, name: str, origins: dict[Key, Origin], problems: list[str]) -> Any:
    above = origins[path].line
    if len(origins) > _MOST_VALUES:
        raise SpecError(
            [f"{name}:{above}: expected at most {_MOST_VALUES:,} values (each use of an alias counts), got more"]
        )
    tag = getattr(getattr(node, "tag", None), "value", None)
    if tag is not None and str(tag) not in _TAGS:
        problems.append(f"{name}:{above}: the tag {str(tag).replace(_STANDARD, '!!')} is not supported: remove it")
        return None
    if isinstance(node, dict):
        out = {}
        for key, value in node.items():
            line = _line(node, node.lc.data, key, above)  # type: ignore[attr-defined]
            if not isinstance(key, str):
                problems.append(f"{name}:{line}: the key {key!r} is not text: put it in quotes")
                continue
            origins[(*path, key)] = Origin(name, line)
            out[key] = _plain(value, (*path, key), name, origins, problems)
        return out
    if isinstance(node, list):
        items = []
        for index, value in enumerate(node):
            line = _line(node, node.lc.data, index, above)  # type: ignore[attr-defined]
            origins[(*path, index)] = Origin(name, line)
            items.append(_plain(value, (*path, index), name, origins, problems))
        return items
    if isinstance(node, bool) or node is None:
        return node
    for kind in (str, int, float):
        if isinstance(node, kind):
            return kind(node)
    if type(node) is datetime.date:
        return node.isoformat()  # a date stays text
    problems.append(f"{name}:{origins[path].line}: {node!r} is neither text nor a number: put it in quotes")
    return None


def _line(node: Any, places: Mapping[Any, Any] | None, key: Any, above: int) -> int:
    """Return the line of a key or item; for one from a merge key (`<<`), the line of the node."""
    place = (places or {}).get(key)
    if place is not None:
        return int(place[0]) + 1
    return above if node.lc.line is None else int(node.lc.line) + 1


def _with_sources(document: Document) -> Document:
    """Resolve the ``source:`` keys of a profile: each applies to its mapping and everything below.

    ``source: D`` names an entry of the top-level ``sources:``; ``source: {max_time: S}`` names one for
    single keys. The ``source:`` keys are removed from the data, because they are not values.
    """
    table = document.data.get("sources")
    if not isinstance(table, dict):
        return document
    problems: list[str] = []
    origins = dict(document.origins)

    def lookup(name: Any, path: Key) -> Sourced:
        entry = table.get(name) if isinstance(name, str) else None
        if not isinstance(entry, dict):
            at = document.origin(path)
            problems.append(f"{at.file}:{at.line}: no source {name!r} in `sources`; {suggestion(str(name), table)}")
            return None, None, None
        return entry.get("title"), entry.get("as_of"), entry.get("url")

    def visit(node: Any, path: Key, inherited: Sourced) -> Any:
        at = origins[path]
        if isinstance(node, dict):
            named = node.get("source")
            single: dict[str, Sourced] = {}
            if isinstance(named, str):
                inherited = lookup(named, (*path, "source"))
            elif isinstance(named, dict):
                single = {key: lookup(value, (*path, "source", key)) for key, value in named.items()}
                inherited = single.pop("default", inherited)
            origins[path] = Origin(at.file, at.line, *inherited)
            return {
                key: value
                if path == () and key == "sources"
                else visit(value, (*path, key), single.get(key, inherited))
                for key, value in node.items()
                if key != "source"
            }
        origins[path] = Origin(at.file, at.line, *inherited)
        if isinstance(node, list):
            return [visit(value, (*path, index), inherited) for index, value in enumerate(node)]
        return node

    data = visit(document.data, (), (None, None, None))
    if problems:
        raise SpecError(problems)
    return Document(data, {path: at for path, at in origins.items() if "source" not in path})


def validate(model: type[Model], document: Document) -> Model:
    """Turn a document into a typed object.

    Raises:
        SpecError: with one line for each fault: ``file:line: key: what was expected``.
    """
    try:
        return model.model_validate(document.data)
    except ValidationError as error:
        faults = [explanation for fault in error.errors() for explanation in _explain(model, document, fault)]
        texts: dict[tuple[Key, str, int], tuple[Origin, list[str]]] = {}
        for origin, path, text in sorted(faults, key=lambda fault: (fault[0].file, fault[0].line)):
            texts.setdefault((path, origin.file, origin.line), (origin, []))[1].append(text)
        paths = {path for path, *_ in texts}
        problems = [
            _problem(at, path, text)
            for (path, *_), (at, some) in texts.items()
            for text in as_one(some)
            if not (text.endswith(_CONTAINERS) and any(_is_below(other, path) for other in paths))
        ]
        raise SpecError(list(dict.fromkeys(problems))) from None


def _is_below(path: Key, above: Key) -> bool:
    return len(path) > len(above) and path[: len(above)] == above


def _explain(model: type[BaseModel], document: Document, fault: Mapping[str, Any]) -> Iterator[tuple[Origin, Key, str]]:
    path = tuple(part for part in fault["loc"] if not str(part).startswith(("function-", "tagged-")))
    path = tuple(_real_parts(document.data, path, fault["type"] in ("missing", "extra_forbidden")))
    error = (fault.get("ctx") or {}).get("error")
    if isinstance(error, Faults):
        for below, text in error.faults:
            yield document.origin((*path, *below)), (*path, *below), text
    elif fault["type"] == "extra_forbidden":
        key = str(path[-1])
        if len(path) > 1 and key in model.model_fields:
            yield document.origin(path), path, f"unknown key here: {key} is a key of the file's top level"
        else:
            yield document.origin(path), path, f"unknown key; {suggestion(key, _fields_at(model, path[:-1]))}"
    else:
        yield document.origin(path), path, "is missing" if fault["type"] == "missing" else in_words(fault)


def _problem(origin: Origin, path: Key, text: str) -> str:
    return f"{origin.where}: {dotted(path)}: {text}" if path else f"{origin.where}: {text}"


def _real_parts(data: Any, path: Key, last_is_absent: bool) -> Iterator[str | int]:
    """Remove the parts of a pydantic location that are not in the data (names of union branches)."""
    for position, part in enumerate(path):
        inside = (isinstance(data, dict) and part in data) or (
            isinstance(data, list) and isinstance(part, int) and part < len(data)
        )
        if inside:
            data = data[part]
            yield part
        elif last_is_absent and position == len(path) - 1:
            yield part


def _fields_at(annotation: Any, path: Key) -> list[str]:
    """Return the keys that are allowed at a path below a model, a mapping, a sequence or a union of these."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        if not path:
            return list(annotation.model_fields)
        field = annotation.model_fields.get(str(path[0]))
        return _fields_at(field.annotation, path[1:]) if field else []
    arguments = get_args(annotation)
    if path and get_origin(annotation) is dict:
        return _fields_at(arguments[1], path[1:])
    if path and get_origin(annotation) in (list, tuple):
        return _fields_at(arguments[0], path[1:])
    return [name for argument in arguments for name in _fields_at(argument, path)]
