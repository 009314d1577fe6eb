"""The reference of `import ferry`, from signatures and docstrings.

A line `::: ferry.NAME` of the page is replaced by the name's signature and docstring; a class also has the signatures
and docstrings of its methods.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable, Iterator
from typing import Any

import ferry

NAMED = re.compile(r"^::: ferry\.(\w+)$", re.MULTILINE)

SECTION = re.compile(r"^(Attributes|Parameters|Returns|Raises|Example):", re.MULTILINE)

ITEM = re.compile(r"^([\w*, `=]+): (.*)$", re.DOTALL)


def names() -> list[str]:
    """All names of the page: the names of `import ferry`, and the classes that its methods return."""
    return [*ferry.__all__, *(kind.__name__ for kind in handed_out() if kind.__name__ not in ferry.__all__)]


def thing(name: str) -> Any:
    """What a name is."""
    return next((kind for kind in handed_out() if kind.__name__ == name), None) or getattr(ferry, name)


def returned(function: Callable[..., Any]) -> list[type]:
    """The classes of ours that a function gives out, by its annotation."""
    called = re.findall(r"\w+", str(function.__annotations__.get("return")))
    rooms = [vars(module) for name, module in [*sys.modules.items()] if name.startswith("ferry.")]
    found = [room[name] for name in called for room in rooms if inspect.isclass(room.get(name))]
    return [kind for kind in found if kind.__module__.startswith("ferry.")]


def handed_out() -> list[type]:
    """Classes of streams: what a pipeline gets, and what methods of these return, if it has methods of its own."""
    found: list[type] = [ferry.Stream]
    for kind in found:
        more = [each for member in vars(kind).values() if inspect.isfunction(member) for each in returned(member)]
        found += [each for each in dict.fromkeys(more) if each not in found and [*members(each)]]
    return found


def members(kind: type) -> Iterator[tuple[str, Any]]:
    """Public methods and properties of a class, by `Class.name`."""
    for name, member in vars(kind).items():
        if not name.startswith("_") and (inspect.isfunction(member) or isinstance(member, property)):
            yield f"{kind.__name__}.{name}", member


def page(text: str) -> str:
    """The page with every name filled in."""
    return NAMED.sub(lambda found: entry(found[1]), text)


def entry(name: str) -> str:
    """A name's part of the page."""
    found = thing(name)
    lines = [f"### ferry.{name} {{ #{name} }}", "", *described(name, found)]
    for member, function in members(found) if inspect.isclass(found) else ():
        lines += ["", f"#### {member} {{ #{member} }}", "", *described(member, function)]
    return "\n".join(lines)


def described(name: str, found: Any) -> list[str]:
    """Signature and docstring."""
    head = [] if isinstance(found, property) else ["```text", signature(name, found), "```", ""]
    return [*head, markdown(inspect.getdoc(found) or "")]


def signature(name: str, found: Any) -> str:
    """How it is called; a class that is handed out, subclassed or raised is its name."""
    if inspect.isclass(found):
        made_by_users = "__init__" in vars(found) and not getattr(found, "_is_protocol", False)
        if found in handed_out() or not made_by_users:
            return f"class {name}"
    try:
        written = inspect.signature(found)
    except (TypeError, ValueError):
        return name
    kept = [p.replace(annotation=p.empty) for p in written.parameters.values() if p.name != "self"]
    text = str(written.replace(parameters=kept, return_annotation=inspect.Signature.empty))
    return name + re.sub(r"<object object at [^>]*>", "...", text)


def markdown(docstring: str) -> str:
    """A docstring as Markdown: its sections as paragraphs or lists, its example as code."""
    head, *parts = SECTION.split(docstring)
    lines = [paragraphs(head)]
    for section, body in zip(parts[::2], parts[1::2], strict=True):
        if section == "Example":
            lines += ["```pycon\n" + inspect.cleandoc(body) + "\n```"]
        elif items := items_of(body):
            lines += [f"**{section}**", "\n".join(items)]
        else:
            lines.append(f"**{section}:** {paragraphs(body)}")
    return "\n\n".join(lines)


def items_of(body: str) -> list[str]:
    """The names that a section explains, one a line and each with its text; none, where it is a sentence."""
    if body.partition("\n")[0].strip():
        return []
    lines = inspect.cleandoc(body).splitlines()
    parts = [" ".join(part.split()) for part in re.split(r"\n(?=\S)", "\n".join(lines)) if part.strip()]
    return [f"- `{item[1]}`: {plain(item[2])}" if (item := ITEM.match(part)) else f"- {plain(part)}" for part in parts]


def paragraphs(text: str) -> str:
    """Text whose lines were broken to fit."""
    return "\n\n".join(plain(" ".join(part.split())) for part in re.split(r"\n\s*\n", text.strip()))


def plain(text: str) -> str:
    """A text of a docstring, whose double backticks and signs mean the same in Markdown."""
    return text.replace("``", "`").replace("<", "&lt;")
