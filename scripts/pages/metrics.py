"""The reference of metrics, collected from the source: each name that the product exports with its help text. And alerts."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import yaml

from scripts.pages.errors import PACKAGES, ROOT, assigned, called, parsed, topic_of

HELPERS = {"gauge": "ferry_operator_{}", "_histogram": "ferry_{}_seconds"}
"""Functions that complete a name, and how."""


def metrics(root: Path = ROOT) -> dict[str, tuple[str, str]]:
    """(heading, help) of each metric, by name."""
    found: dict[str, tuple[str, str]] = {}
    for file, tree in parsed(root).items():
        package = next(root / p for p in PACKAGES if file.is_relative_to(root / p))
        for name, text in named(tree):
            found.setdefault(name, (topic_of(file.relative_to(package)), text))
    return found


def named(tree: ast.Module) -> list[tuple[str, str]]:
    """(name, help) of each metric of one file."""
    found, values = [], assigned(tree.body)
    for node in ast.walk(tree):
        parts = node.args if isinstance(node, ast.Call) else node.elts if isinstance(node, ast.Tuple) else []
        texts = [text for part in parts[:2] if (text := text_of(part, values)) is not None]
        if len(texts) == 2:
            pattern = HELPERS.get(called(node) if isinstance(node, ast.Call) else "", "{}")
            name = pattern.format(texts[0])
            if name.startswith("ferry_") and name.isidentifier():
                found.append((name, texts[1]))
    return found


def text_of(node: ast.expr, values: dict[str, list[ast.expr]]) -> str | None:
    """A text, or what a name was last assigned before it is used."""
    if isinstance(node, ast.Name):
        before = [value for value in values.get(node.id, ()) if value.lineno < node.lineno]
        return text_of(max(before, key=lambda value: value.lineno), {}) if before else None
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else None


def page() -> str:
    """The generated part of the page, as Markdown."""
    found = metrics()
    lines = list[str]()
    for topic in dict.fromkeys(topic for topic, _ in found.values()):
        lines += ["", f"### {topic}", "", "| metric | meaning |", "|---|---|"]
        lines += [f"| `{name}` | {text} |" for name, (of, text) in sorted(found.items()) if of == topic]
    return "\n".join(lines)


def alerts() -> str:
    """The alerts of the chart as a table, with links to the runbook."""
    document = yaml.safe_load((ROOT / "charts" / "ferry" / "alerts.yaml").read_text("utf-8"))
    rules: list[dict[str, Any]] = [rule for group in document["groups"] for rule in group["rules"]]
    rows = [
        f"| [`{r['alert']}`](runbook.md#{r['alert'].lower()}) | {r['labels']['severity']} | {r['annotations']['summary']} |"
        for r in rules
    ]
    return "\n".join(["| alert | severity | meaning |", "|---|---|---|", *rows])
