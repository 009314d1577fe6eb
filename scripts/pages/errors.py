"""Every text of an error, a condition and an event of the product, collected from its source.

A text is an argument of an error class: `SpecRefused(f"no column {name!r}")` is the pattern `no column {name}`. The page
follows variables of the same function, constants, and functions that return a text: a whole text, or lines of several.
"""

from __future__ import annotations

import ast
import html
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from itertools import islice, product
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("runtime/ferry", "operator/ferry_operator")

REPORTS = {
    "HTTPException": 1,
    "Notice": 2,
    "Problem": 1,
    "ReportedProblem": 1,
    "Rule": 3,
    "UntimedCondition": 3,
    "add": 1,
    "note": 1,
    "warn": 1,
}
"""Other classes with a text for users, and the position of this argument."""

REASON_AT = {
    "Notice": 1, "Problem": 0, "ReportedPatience": 2, "ReportedProblem": 0, "UntimedCondition": 2, "add": 0, "warn": 0,
}  # fmt: skip
"""Position of the argument with the reason of a condition or an event, which `kubectl` shows."""

DEGRADED = ("Problem", "ReportedPatience", "ReportedProblem", "add", "warn")
"""The calls with a reason of the condition `Degraded`."""

REASON = re.compile(r"([A-Z][a-z]+)+")

TEXTS = ("str", "str | None", "list[str]", "Iterator[str]")
"""Annotations of functions that return texts."""

PRINTED = {"spec.warnings()": "warning", "listing.instead()": "remedy", "hints._of_stream()": "remedy"}
"""Functions that return a text for the terminal, or the end of an error text; and the kind of these texts on the page."""

BUILTIN = {
    "FileNotFoundError", "KeyError", "LookupError", "NotADirectoryError", "OSError", "RuntimeError", "TimeoutError",
    "TypeError", "ValueError",
}  # fmt: skip

TOPICS = {
    "api": "Pipelines",
    "spark": "Pipelines, and what Spark runs of them",
    "connectors": "Sources and sinks",
    "kernels": "Values and keys",
    "process": "Aggregates and processes",
    "contract": "Settings, messages and plans",
    "job": "The job file",
    "crd": "The job file",
    "cli": "Commands",
    "local": "Runs on one machine",
    "testing": "ferry.test and ferry.run",
    "reading": "State as a table",
    "durable": "Checkpoints",
    "driver": "The driver",
    "coordinator": "The coordinator",
    "protocol": "The coordinator",
    "registry": "Journal and registry",
    "sidecar": "Instances and their state",
    "store": "Instances and their state",
    "worker": "Workers",
    "channel": "Channels between instances",
    "system": "The machine",
    "environment": "The machine",
    "control": "The operator",
    "placement": "The operator",
    "kube": "Conditions, events and the operator",
}
"""By room: the heading of its texts. A room that is not here has its own name as the heading."""

LITERAL_MIN = 4
"""Letters that a pattern has at least beside its placeholders; others only pass a text on."""

ALTERNATIVES_MAX = 12


@dataclass(frozen=True, order=True)
class Entry:
    """One text: under which heading, what kind of error it is, and in which rooms it is written."""

    topic: str
    pattern: str
    kind: str

    @property
    def anchor(self) -> str:
        """Where a link finds it: its first words."""
        words = re.findall(r"[a-z0-9]+", re.sub(r"\{[^}]*\}", " ", self.pattern).lower())
        return "-".join(words[:10])


@cache
def parsed(root: Path) -> dict[Path, ast.Module]:
    """Every file of the product."""
    files = [file for package in PACKAGES for file in sorted((root / package).rglob("*.py"))]
    return {file: ast.parse(file.read_text("utf-8")) for file in files}


def entries(root: Path = ROOT) -> list[Entry]:
    """All of them, in the order of the page; a text that several places raise is there once."""
    trees = parsed(root)
    kinds, shared = error_classes([*trees.values()]), constants([*trees.values()])
    shared |= returned(trees)
    found: dict[str, Entry] = {}
    for file, tree in trees.items():
        package = next(root / p for p in PACKAGES if file.is_relative_to(root / p))
        topic = topic_of(file.relative_to(package))
        for kind, pattern in texts(tree, kinds, shared | returned({file: tree})):
            found.setdefault(pattern, Entry(topic, pattern, kind))
        for function, kind in PRINTED.items():
            for pattern in (p for value in returned({file: tree}).get(function, ()) for p in patterns(value, shared)):
                found.setdefault(pattern, Entry(topic, pattern, kind))
    return sorted(found.values())


def topic_of(file: Path) -> str:
    """The heading of a file's texts: the heading of its room; for a connector, with the name of its system."""
    room, *more = file.with_suffix("").parts
    topic = TOPICS.get(room, room)
    return f"{topic}: {more[0]}" if room == "connectors" and len(more) > 1 else topic


def error_classes(trees: list[ast.Module]) -> set[str]:
    """Names of all errors of the product: the classes below FerryError except Bug, and raised classes of Python."""
    bases = {
        node.name: {ast.unparse(base).rpartition(".")[2] for base in node.bases}
        for tree in trees
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
    }
    known = {"FerryError", *BUILTIN, "Exception"}
    while more := {name for name, of in bases.items() if name not in known and of & known}:
        known |= more
    bugs = {"Bug", "Exception", "FerryError"}
    while more := {name for name, of in bases.items() if name not in bugs and "Bug" in of & bugs}:
        bugs |= more
    return known - bugs


def constants(trees: list[ast.Module]) -> dict[str, list[ast.expr]]:
    """The texts that modules keep under a name in capitals, for the files that import them."""
    texts = [(name, value) for tree in trees for name, values in assigned(tree.body).items() for value in values]
    found = {name: value for name, value in texts if name.isupper() and isinstance(value, ast.Constant)}
    return {name: [value] for name, value in found.items() if len({ast.dump(v) for n, v in texts if n == name}) == 1}


def returned(trees: dict[Path, ast.Module]) -> dict[str, list[ast.expr]]:
    """By `name()`, if no other function has the name, and by `module.name()`: the texts that a function returns."""
    named: dict[str, list[ast.FunctionDef]] = {}
    for file, tree in trees.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef) and node.returns is not None and ast.unparse(node.returns) in TEXTS:
                for name in (f"{node.name}()", f"{file.stem}.{node.name}()"):
                    named.setdefault(name, []).append(node)
    return {name: [*_results(one[0])] for name, one in named.items() if len(one) == 1}


def _results(function: ast.FunctionDef) -> Iterator[ast.expr]:
    local = assigned(function.body)
    for node in ast.walk(function):
        match node:
            case ast.Return(value=ast.Name(id=name)) if name in local:
                yield from local[name]
            case ast.Return(value=ast.expr() as value) | ast.Yield(value=ast.expr() as value):
                yield value


def reasons(root: Path = ROOT) -> set[str]:
    """The reasons of the condition `Degraded` that the source names."""
    trees = [*parsed(root).values()]
    shared, found = constants(trees), set[str]()
    for tree in trees:
        own = {**shared, **assigned(tree.body)}
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and called(node) in DEGRADED:
                given = argument(node, REASON_AT[called(node)], "reason")
                found |= {text for text in written(given, own, 0) if REASON.fullmatch(text)} if given else set()
    return found


def texts(tree: ast.Module, kinds: set[str], shared: dict[str, list[ast.expr]]) -> Iterator[tuple[str, str]]:
    """(kind, pattern) of each text in one file."""
    own = {**shared, **assigned(tree.body)}
    functions = [n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)]
    inside = {id(node): function for function in functions for node in ast.walk(function)}
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        kind = called(node)
        if kind not in kinds and kind not in REPORTS:
            continue
        scope = {**own, **assigned(inside[id(node)].body if id(node) in inside else [])}
        if kind in REPORTS:
            reason = argument(node, REASON_AT.get(kind), "reason")
            words = [text for text in written(reason, own, 0) if REASON.fullmatch(text)] if reason else []
            if kind in ("add", "warn") and not words:
                continue
            word = f" {words[0]}" if words else ""
            given = argument(node, REPORTS[kind], "message")
            if kind == "Notice":
                scope = {name: values for name, values in scope.items() if not name.endswith("()")}
            yield from ((f"{NAMED.get(kind, kind)}{word}", text) for text in patterns(given, scope))
        else:
            for given in node.args:
                yield from ((kind, text) for text in patterns(given, scope))


NAMED = {
    "HTTPException": "answer of the driver",
    "Notice": "event",
    "Problem": "Degraded",
    "ReportedProblem": "Degraded",
    "add": "Degraded",
    "warn": "Degraded",
    "Rule": "rule of the API server",
    "UntimedCondition": "condition",
}
"""What a report is called on the page."""


def called(call: ast.Call) -> str:
    """The last name of what is called."""
    return call.func.id if isinstance(call.func, ast.Name) else getattr(call.func, "attr", "")


def argument(call: ast.Call, position: int | None, name: str) -> ast.expr | None:
    """An argument, by its place or its name."""
    named = [word.value for word in call.keywords if word.arg == name]
    if named or position is None:
        return named[0] if named else None
    return call.args[position] if len(call.args) > position else None


def assigned(body: list[ast.stmt]) -> dict[str, list[ast.expr]]:
    """The values of each name of a scope: assigned, or appended to its list."""
    found: dict[str, list[ast.expr]] = {}
    for node in (n for statement in body for n in ast.walk(statement)):
        match node:
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                found.setdefault(name, []).append(value)
            case ast.Assign(targets=[ast.Tuple(elts=names)], value=ast.Tuple(elts=values)) if len(names) == len(values):
                for target, value in zip(names, values, strict=True):
                    if isinstance(target, ast.Name):
                        found.setdefault(target.id, []).append(value)
            case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value):
                found.setdefault(name, []).append(value)
            case ast.Call(func=ast.Attribute(value=ast.Name(id=name), attr="append"), args=[value]):
                found.setdefault(name, []).append(value)
    return found


def patterns(given: ast.expr | None, scope: dict[str, list[ast.expr]]) -> list[str]:
    """The possible texts of an expression, without texts that consist of placeholders."""
    if given is None:
        return []
    made = dict.fromkeys(" ".join(text.split()) for text in islice(written(given, scope, 0), ALTERNATIVES_MAX))
    return [text for text in made if " " in text and len(re.sub(r"\{[^}]*\}|[^A-Za-z]", "", text)) >= LITERAL_MIN]


def written(node: ast.expr, scope: dict[str, list[ast.expr]], depth: int) -> Iterator[str]:
    """The texts that an expression may be."""
    match node:
        case ast.Constant(value=str(text)):
            yield text
        case ast.JoinedStr(values=parts):
            choices = [[*islice(written(part, scope, depth), ALTERNATIVES_MAX)] for part in parts]
            yield from ("".join(each) for each in product(*choices))
        case ast.FormattedValue(value=ast.Name(id=name)) if depth < 3 and name.isupper() and name in scope:
            yield from written(scope[name][0], scope, depth + 1)
        case ast.FormattedValue(value=ast.Constant() | ast.IfExp() as value):
            yield from written(value, scope, depth)
        case ast.FormattedValue(value=value):
            yield placeholder(value)
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            sides = product(written(left, scope, depth), written(right, scope, depth))
            yield from ("".join(each) for each in sides)
        case ast.IfExp(body=body, orelse=orelse):
            yield from written(body, scope, depth)
            yield from written(orelse, scope, depth)
        case ast.Name(id=name) if depth < 3 and name in scope:
            for value in scope[name]:
                yield from written(value, scope, depth + 1)
        case ast.Call(func=ast.Attribute(value=ast.Constant() | ast.Name() as value, attr="format")):
            yield from written(value, scope, depth)
        case ast.Call(func=ast.Name() | ast.Attribute()) if depth < 2 and (function := _function(node, scope)):
            for value in scope[function]:
                yield from written(value, scope, depth + 1)
        case ast.GeneratorExp(elt=value) | ast.ListComp(elt=value):
            yield from written(value, scope, depth)
        case ast.List(elts=several):
            for each in several:
                yield from written(each, scope, depth)
        case _:
            yield placeholder(node)


def _function(call: ast.Call, scope: dict[str, list[ast.expr]]) -> str:
    """The key in `scope` of the function that is called; empty: it returns no text."""
    names = (f"{ast.unparse(call.func)}()", f"{called(call)}()")
    return next((name for name in names if name in scope), "")


def placeholder(node: ast.expr) -> str:
    """What stands for a value: its last name, in braces."""
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return f"{{{name.strip('_').lower()}}}"
        case ast.Subscript(value=value):
            return placeholder(value)
        case ast.Call(func=ast.Name(id="len" | "type")):
            return "{n}" if ast.unparse(node.func) == "len" else "{type}"
        case ast.Call(func=ast.Attribute(value=ast.Constant(), attr="join"), args=[value]):
            return placeholder(value)
        case ast.Call(func=ast.Name(id="sorted" | "str" | "repr" | "named" | "max" | "min"), args=[value, *_]):
            return placeholder(value)
        case ast.GeneratorExp(elt=value) | ast.ListComp(elt=value):
            return placeholder(value)
        case ast.Call(func=called):
            return placeholder(called)
        case ast.BinOp(left=left):
            return placeholder(left)
    return "{...}"


def page(found: list[Entry]) -> str:
    """The generated part of the page: a table by topic, in HTML, for patterns are full of signs that Markdown knows."""
    lines, taken = list[str](), set[str]()
    for topic in dict.fromkeys(entry.topic for entry in found):
        lines += ["", f"### {topic}", "", "<table><thead><tr><th>text</th><th>kind</th></tr></thead><tbody>"]
        for entry in (e for e in found if e.topic == topic):
            anchor = next(
                a for n in range(1, 99) if (a := f"{entry.anchor}-{n}" if n > 1 else entry.anchor) not in taken
            )
            taken.add(anchor)
            text, kind = html.escape(entry.pattern), html.escape(entry.kind)
            lines.append(f'<tr id="e-{anchor}"><td><code>{text}</code></td><td>{kind}</td></tr>')
        lines.append("</tbody></table>")
    return "\n".join(lines)
