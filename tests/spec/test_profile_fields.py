"""Each field of a profile is read somewhere: one that nothing reads would promise what nobody keeps."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import pytest
from pydantic import BaseModel

import hpcrl
from hpcrl.spec.cluster import ClusterProfile

PACKAGE = Path(hpcrl.__file__).parent
# What an object of a model is called where it is read, for names that other objects have too.
CALLED = {
    "ClusterProfile": r"profile|self|document\.data",
    "Source": r"entry",
    "Gpus": r"gpus|kind",
    "NodeType": r"self|node|kind|node_types\[.*\]|each",
    "Qos": r"qos|chosen|qos\[.*\]|wanted|each",
    "Partition": r"partition|partitions\[.*\]|each",
    "Scheduler": r"scheduler|site|cluster|self",
    "Memory": r"memory",
    "Billing": r"billing",
    "Environments": r"environments|site|plan\.cluster",
    "Launch": r"launch",
    "Script": r"script",
}


def models(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
        for field in annotation.model_fields.values():
            yield from models(field.annotation)
    for argument in get_args(annotation):
        yield from models(argument)


def reads() -> set[tuple[str, str]]:
    """Every `object.name` of the package, and every text between the brackets or the call of get() of an object."""
    found: set[tuple[str, str]] = set()
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
                found.add((ast.unparse(node.value), node.attr))
            elif isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
                found.add((ast.unparse(node.value), str(node.slice.value)))
            elif (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Attribute)
                and node.func.attr == "get"
                and node.args
            ):
                found.add((ast.unparse(node.func.value), str(getattr(node.args[0], "value", ""))))
    for path in (PACKAGE.parent / "templates").rglob("*.j2"):
        found |= set(re.findall(r"(?=\b(\w+)\.(\w+))", path.read_text()))
    return found


READS = reads()
FIELDS = sorted({(model.__name__, name) for model in models(ClusterProfile) for name in model.model_fields})


@pytest.mark.parametrize(("model", "name"), FIELDS)
def test_each_field_of_a_profile_is_read(model: str, name: str) -> None:
    called = re.compile(rf"(.*[.\[(\"'])?({CALLED[model]})[\]\"']*$", re.DOTALL)
    assert any(read == name and called.match(owner) for owner, read in READS), f"nothing reads {name} of {model}"


def test_a_field_that_nothing_reads_is_noticed() -> None:
    called = re.compile(rf"(.*\.)?({CALLED['Launch']})$")
    assert not any(read == "command" and called.match(owner) for owner, read in READS)
