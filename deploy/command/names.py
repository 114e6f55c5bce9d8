"""What can be named: read from the source of the tables, so that nothing is imported to list or complete it."""

from __future__ import annotations

import ast
import functools
import json
import re
from collections.abc import Iterator
from typing import NamedTuple

from deploy.command.table import ROOT, source

# Kind -> where its tables stand: module, and the name that the dict is assigned to, there or in a class of it.
TABLES = {
    "task": (("sim.tasks", "TASKS"), ("sim.tasks", "FAMILIES")),
    "robot": (("sim.robots", "ROBOTS"), ("sim.robots", "LISTED")),
    "engine": (
        ("sim.engines", "ENGINES"),
        ("sim.engines", "BENCHES"),
        ("sim.engines", "LEGS"),
        ("sim.tasks.soccer", "MATCHES"),
        ("sim.tasks.race", "engines"),
        ("sim.tasks.traffic", "engines"),
    ),
    "algorithm": (("policies.algorithms", "ALGORITHMS"),),
    "driver": (("deploy.drivers", "DRIVERS"),),
}
SHIPPED = ROOT / "deploy" / "pretrained"  # `deploy.trust.content` says the same, and needs numpy
POLICIES = "policies"  # a kind without a table: the files that are shipped
FAMILIES = "FAMILIES"  # of tasks by others: NAME/member
END = re.compile(r" \(|\.\s|\.$")  # of what one line says of a docstring


class Named(NamedTuple):
    """An entry of a table: its name, and "module:Attribute"."""

    name: str
    place: str


@functools.cache
def tree(module: str) -> ast.Module:
    """The source of a module of ours."""
    return ast.parse(source(module).read_text(encoding="utf-8"))


def _dict(module: str, name: str) -> dict[str, str]:
    """The literal entries of a table."""
    for node in ast.walk(tree(module)):
        target = node.targets[0] if isinstance(node, ast.Assign) else getattr(node, "target", None)
        table = getattr(node, "value", None)
        if isinstance(target, ast.Name) and target.id == name and isinstance(table, ast.Dict):
            pairs = zip(table.keys, table.values, strict=True)
            return {ast.literal_eval(key): ast.literal_eval(place) for key, place in pairs if key is not None}
    return {}


def entries(kind: str) -> list[Named]:
    """Everything of ours of a kind, in the tables' order; a name that means two things is there twice."""
    found: dict[Named, None] = {}
    for module, table in TABLES[kind]:
        end = "/NAME" if table == FAMILIES else ""
        found |= {Named(name + end, place): None for name, place in _dict(module, table).items()}
    return [*found]


def shipped() -> list[str]:
    """Policy files that are named without a path."""
    return sorted(path.stem for path in SHIPPED.glob("*.onnx"))


def purposes() -> Iterator[tuple[str, str]]:
    """Each of them, and what it is for."""
    from deploy.trust.content import check_digest

    for name in shipped():
        content = (SHIPPED / f"{name}.onnx").read_bytes()
        told, _ = json.JSONDecoder().raw_decode(content[check_digest(name, content) :].decode("utf-8", "ignore"))
        yield name, f"for task={told['task']}, at {told['rate_hz']:g} Hz"


def described(kind: str) -> Iterator[tuple[str, str]]:
    """Each name with one line: its module's docstring, or its class's where a name before it had the module's."""
    named = entries(kind)
    modules = [place.partition(":")[0] for _, place in named]
    told: set[str] = set()
    for (name, place), module in zip(named, modules, strict=True):
        attribute = place.partition(":")[2]
        own = _said(module, attribute, numbers=modules.count(module) > 1) if module in told or kind == "robot" else ""
        told.add(module)
        said = " ".join((own or ast.get_docstring(tree(module)) or "").split("\n\n")[0].split())
        yield name, END.split(said, maxsplit=1)[0]


def _said(module: str, attribute: str, numbers: bool) -> str:
    """Of a class its docstring; of a robot, where several share a module, its own or what its numbers are of."""
    body = tree(module).body
    for node, following in zip(body, [*body[1:], None], strict=True):
        if isinstance(node, ast.ClassDef) and node.name == attribute:
            return ast.get_docstring(node) or ""
        assigned = numbers and isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == attribute
        if assigned and isinstance(following, ast.Expr) and isinstance(following.value, ast.Constant):
            return str(following.value.value)
        value = getattr(node, "value", None) if assigned else None
        if isinstance(value, ast.Call):
            sources = [k.value for k in value.keywords if k.arg == "source"]
            text = sources[0].value if sources and isinstance(sources[0], ast.Constant) else ""
            return str(text).partition(": ")[0]
    return ""
