"""The reference of the command line, from the definitions that `ferry --help` is made of."""

from __future__ import annotations

import html
from typing import Any

import typer

from ferry_operator.cli.main import app


def commands() -> dict[str, Any]:
    """Every command, by name, in the order of `ferry --help`."""
    return dict(group().commands)


def group() -> Any:
    """What `ferry` is made of."""
    return typer.main.get_command(app)


def page() -> str:
    """The generated part of the page, as Markdown."""
    whole = group()
    lines = ["### Options of every command", "", *table([p for p in whole.params if p.param_type_name == "option"])]
    for name, command in whole.commands.items():
        arguments = [p for p in command.params if p.param_type_name == "argument"]
        options = [p for p in command.params if p.param_type_name == "option" and not getattr(p, "hidden", False)]
        usage = " ".join([f"ferry {name}", *(metavar(p) for p in arguments), *(["[OPTIONS]"] if options else [])])
        lines += ["", f"### ferry {name}", "", "```text", usage, "```", "", prose(command.help or "")]
        lines += ["", *table(arguments + options)] if arguments or options else []
        lines += ["", prose(command.epilog)] if command.epilog else []
    return "\n".join(lines)


def table(params: list[Any]) -> list[str]:
    """Arguments and options, one a row."""
    rows = [f"| {code(called(p))} | {cell(getattr(p, 'help', None) or '')}{default(p)} |" for p in params]
    return ["| argument or option | meaning |", "|---|---|", *rows]


def called(param: Any) -> str:
    """How it is written on a command line."""
    if param.param_type_name == "argument":
        return metavar(param)
    names = ", ".join([*param.opts, *param.secondary_opts])
    return names if param.is_flag else f"{names} {metavar(param)}"


def metavar(param: Any) -> str:
    """The word that stands for a value."""
    kind = getattr(param.type_descriptor.annotation, "__name__", "value")
    word = param.metavar or {"int": "N", "float": "N", "Path": "FILE"}.get(kind, "NAME")
    return word if param.param_type_name == "option" or param.required else f"[{word}]"


def default(param: Any) -> str:
    """What holds without it, where that is a value."""
    given = param.default
    shown = given is not None and not callable(given) and given is not False and given not in ((), [], "")
    return f" Default: {code(str(given))}." if shown and isinstance(given, str | int | float) else ""


def prose(text: str) -> str:
    """A text of help as a paragraph or more."""
    return "\n\n".join(html.escape(" ".join(part.split()), quote=False) for part in text.split("\n\n"))


def cell(text: str) -> str:
    """A text in a cell of a table."""
    return html.escape(" ".join(text.split()), quote=False).replace("|", "&#124;")


def code(text: str) -> str:
    """The same, as code."""
    return f"<code>{html.escape(text)}</code>".replace("|", "&#124;")
