"""How the stateful operators of a program differ from the operators of a running job or of a checkpoint, in words."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ferry.contract.descriptors import GLOBAL, OperatorDescriptor
from ferry.contract.program_text import without_text

WHAT_TO_DO = (
    "Their state cannot be taken over. Put them back as they were, or begin without that state: on one machine, run with "
    "another spec.state.directory and another --output; in a cluster, delete the job and create it again"
)


def differences(before: Sequence[OperatorDescriptor], now: Sequence[OperatorDescriptor]) -> list[str]:
    """What was added, removed or changed, such as "sales: aggregate top was added"; empty: they keep the same state.

    The file of a class is no difference: a comment in it changes no state.
    """
    old, new = ({one["name"]: one for one in map(_wire, each)} for each in (before, now))
    changes = [f"operator {name!r} was removed" for name in old if name not in new]
    changes += [f"operator {name!r} was added" for name in new if name not in old]
    for name in old:
        if name in new and old[name] != new[name]:
            changes += [f"{name}: {words}" for words in _changes(old[name], new[name])] or [f"{name} was changed"]
    if not changes and list(old) != list(new):
        changes.append(
            f"the operators are in another order (they were {', '.join(old)}, now they are {', '.join(new)})"
        )
    return changes


def changes_of(before: OperatorDescriptor, now: OperatorDescriptor) -> list[str]:
    """The changes in the state of one operator, in words; empty: it keeps the same state."""
    old, new = _wire(before), _wire(now)
    return [] if old == new else [*_changes(old, new)] or ["was changed"]


def _wire(one: OperatorDescriptor) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(without_text(json.dumps(one.to_wire())))
    document.pop("index")
    if document["process"]:
        document["process"].pop("upgrades", None)
    return document


def _changes(old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[str]:
    if old["kind"] != new["kind"]:
        yield f"was {_kind(old)}, and is {_kind(new)}"
        return
    if old["key"] != new["key"]:
        yield f"the key was {_columns(old['key'])}, and is {_columns(new['key'])}"
    if old["window"] != new["window"]:
        yield f"the window was {_window(old['window'])}, and is {_window(new['window'])}"
    if old["emit"] != new["emit"]:
        yield f"it emitted {old['emit']} rows, and emits {new['emit']} ones"
    if old["ttl_ms"] != new["ttl_ms"]:
        instead = ": give a longer ttl= instead" if new["ttl_ms"] is None else ""
        yield f"keys were kept for {milliseconds(old['ttl_ms'])}, and are for {milliseconds(new['ttl_ms'])}{instead}"
    yield from _of_each("aggregate", *({a["name"]: _aggregate(a) for a in one["aggregates"]} for one in (old, new)))
    for side in ("left", "right"):
        if old[side] != new[side]:
            sides = [one[side] or {"columns": ()} for one in (old, new)]
            columns = [{name: f"{source} {kind}" for name, source, kind in one["columns"]} for one in sides]
            yield from _of_each(f"column of the {side} side", *columns)
    if old["process"] and new["process"] and old["process"] != new["process"]:
        yield from _of_process(old["process"], new["process"])


def _of_process(old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[str]:
    if old["made_of"] != new["made_of"]:
        yield f"its class was {_class(old)}, and is {_class(new)}"
    if old["arguments"] != new["arguments"]:
        yield from _of_arguments(json.loads(old["arguments"]), json.loads(new["arguments"]))
    if old["made_of"] != new["made_of"]:
        return  # Tables of two classes have nothing in common.
    yield from _of_each("table", *({name: rest for name, *rest in one["tables"]} for one in (old, new)))
    if (old["inputs"], old["columns"]) != (new["inputs"], new["columns"]):
        yield f"it read {_inputs(old)}, and reads {_inputs(new)}, or columns of other types"
    if old["output"] != new["output"]:
        yield "its output has other columns"
    if old["order"] != new["order"]:
        yield f"records were taken by {old['order'] or 'event time'}, and are by {new['order'] or 'event time'}"
    if old["parts"] != new["parts"]:
        yield "tasks condense its records in another way"


def _of_arguments(old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[str]:
    for name in dict.fromkeys((*old, *new)):
        before, now = (json.dumps(one[name]) if name in one else "not set" for one in (old, new))
        if before != now:
            yield f"{name} was {before}, and is {now}"


def _of_each(noun: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[str]:
    """Differences between two maps of named items. Items that are texts are shown."""
    yield from (f"{noun} {name} was removed" for name in old if name not in new)
    yield from (f"{noun} {name} was added" for name in new if name not in old)
    changed = [name for name in old if name in new and old[name] != new[name]]
    for name in changed:
        shown = isinstance(new[name], str)
        yield f"{noun} {name} " + (
            f"was {old[name]}, and is {new[name]}" if shown else "has other columns, or other types"
        )
    if not changed and list(old) != list(new) and set(old) == set(new):
        yield f"each {noun} has another place (they were {', '.join(old)}, now they are {', '.join(new)})"


def _aggregate(one: Mapping[str, Any]) -> str:
    """As a user writes it, with the types of its columns: `arg_max(bidder string, price int)`."""
    columns = [(one["column"], one["number"]), (one["by"], one["by_number"])]
    return f"{one['function']}({', '.join(f'{column} {kind}' for column, kind in columns if column is not None)})"


def _kind(one: Mapping[str, Any]) -> str:
    return "an aggregate" if one["kind"] == "aggregate" else f"a {one['kind']}"


def _columns(key: Sequence[Sequence[str]]) -> str:
    return "(" + ", ".join(f"{name} {kind}" for name, kind in key) + ")"


def _inputs(process: Mapping[str, Any]) -> str:
    return " and ".join("(" + ", ".join(one) + ")" for one in process["columns"])


def _class(process: Mapping[str, Any]) -> str:
    """The name of a class of the user's, or of a class of Ferry's."""
    return str(process["made_of"]).rpartition(":")[2]


def _window(one: Mapping[str, int]) -> str:
    size, slide = one["size_ms"], one["slide_ms"]
    if size == GLOBAL.size_ms:
        return "none"
    return f"{size} ms" + (f", every {slide} ms" if slide != size else "")


def milliseconds(ms: int | None) -> str:
    """A time to live in words.

    >>> milliseconds(5), milliseconds(None)
    ('5 ms', 'ever')
    """
    return "ever" if ms is None else f"{ms} ms"
