"""The page docs/fields.md: every field of the spec with its meaning, its values and the effect of a change.

Pure text from the tables of `changes` and `rules` and the schema.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pydantic.fields import FieldInfo

from ferry_operator.crd.derived import bounds_of, within
from ferry_operator.crd.rules import RULES, WRITTEN
from ferry_operator.crd.schema import node_at, schema
from ferry_operator.job import changes
from ferry_operator.job.fields import group_of, names_of
from ferry_operator.job.quantities import Cpus, Duration, Quantity

HEAD = """# Fields of a StreamJob

<!-- Written by `make crds`; a test fails when it is out of date. Do not edit. -->

The meaning and the values of every field, and the effect of a change on a running job on Kubernetes:

{kinds}

`ferry run` reads the file once; `ferry scale` changes the number of workers and of instances of a running job.
`ferry run` checks fields marked `Kubernetes` and does not use them. Kubernetes refuses fields marked `one machine`.
Fields of a list, such as `volumes[].name`, change with the list.
Another spelling of the same value (`1s`, `1000ms`) is no change. Applying the same document again changes nothing.
`kubectl apply` reads a null as an absent field. A field whose default is not null has a value with the meaning of null.
"""

ROOT = schema(whole=True)

USED = {"both": "", "kubernetes": "Kubernetes", "one machine": "one machine"}


def page() -> str:
    """The whole page."""
    return "\n".join([HEAD.format(kinds=_kinds()), *_sections(), *_rules()]) + "\n"


def _kinds() -> str:
    lines = (changes.__doc__ or "").splitlines()
    return "\n".join(line for line in lines if line.startswith("|"))


def _sections() -> Iterator[str]:
    groups: dict[str, list[changes.FieldEntry]] = {}
    for entry in changes.TABLE:
        groups.setdefault(entry.path.rpartition(".")[0], []).append(entry)
    for group in sorted(groups, key=lambda one: (one.count("."), one == "spec.kubernetes")):
        yield from (
            "",
            f"## {group}",
            "",
            "| field | meaning | values | default | a change is | what happens | only on |",
        )
        yield "|---|---|---|---|---|---|---|"
        for entry in groups[group]:
            yield _row(group, entry.path, entry.field, entry.kind.value, entry.what, USED[entry.used])
            inside = group_of(entry.field.annotation)
            if inside is not None:
                for alias, name in names_of(inside).items():
                    items = "[]" if "items" in node_at(ROOT, entry.path) else ""
                    yield _row(group, f"{entry.path}{items}.{alias}", inside.model_fields[name], "", "", "")


def _row(group: str, path: str, field: FieldInfo, *more: str) -> str:
    node = node_at(ROOT, path)
    name = path.removeprefix(group).removeprefix(".")
    cells = [f"`{name}`", node["description"], _values(node, field), _default(node), *more]
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _values(node: dict[str, Any], field: FieldInfo) -> str:
    if "enum" in node:
        return ", ".join(f"`{one}`" for one in node["enum"])
    kind = {"array": "list", "object": "map", "string": "text", "integer": "number", "number": "number"}.get(
        node.get("type", ""), "size"
    )
    kind = _PATTERNS.get(node.get("pattern", ""), "yes or no" if node.get("type") == "boolean" else kind)
    low, high = node.get("minimum"), node.get("maximum")
    bounds = f"{low} to {high}" if high is not None else f"from {low}" if low is not None else ""
    for limits in bounds_of(field):
        bounds = within(limits)[1].removeprefix("must be ")
    return f"{kind}, {bounds}" if bounds else kind


def _default(node: dict[str, Any]) -> str:
    if "default" in node:
        return f"`{str(node['default']).lower() if isinstance(node['default'], bool) else node['default']}`"
    return "none" if node.get("nullable") else ""


def _rules() -> Iterator[str]:
    yield from ("", "## Rules between fields", "", "Kubernetes refuses a StreamJob that breaks one of them.", "")
    yield from ("| where | rule |", "|---|---|")
    for rule in RULES:
        if rule in WRITTEN or rule.update:
            yield f"| `{rule.path or 'the object'}` | {rule.message} |"


def _pattern(kind: type[Any]) -> str:
    return str(kind.__get_pydantic_json_schema__(None, None)["pattern"])


_PATTERNS = {_pattern(Duration): "duration", _pattern(Quantity): "size", _pattern(Cpus): "CPUs"}
