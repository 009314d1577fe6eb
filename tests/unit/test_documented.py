"""What users call says what it takes, gives and raises, and has an example, which is run here."""

from __future__ import annotations

import doctest
import inspect
import re
from typing import Any

import pytest

import ferry
from scripts.pages.api import handed_out, members
from tests.unit.streams import named

SECTION = re.compile(r"^(Parameters|Returns|Raises|Example):", re.MULTILINE)


def api() -> dict[str, Any]:
    """Every public name, and every step of a pipeline."""
    found = {name: getattr(ferry, name) for name in ferry.__all__}
    return found | {name: member for one in handed_out() for name, member in members(one)}


def sections(thing: Any) -> dict[str, str]:
    """The sections of a docstring, by name."""
    _, *parts = SECTION.split(inspect.getdoc(thing) or "")
    return dict(zip(parts[::2], parts[1::2]))


def parameters(thing: Any) -> list[str]:
    """What a user gives it. Streams are handed out; a class without an `__init__` of its own is subclassed, or raised."""
    made_by_users = inspect.isclass(thing) and "__init__" in vars(thing) and not getattr(thing, "_is_protocol", False)
    if isinstance(thing, property) or (inspect.isclass(thing) and (thing in handed_out() or not made_by_users)):
        return []
    return [name for name in inspect.signature(thing).parameters if name != "self"]


def lacking(thing: Any) -> list[str]:
    """What its docstring does not say."""
    said, asked = sections(thing), parameters(thing)
    found = [name for name in asked if not re.search(rf"\b{name}\b", said.get("Parameters", ""))]
    function = inspect.isfunction(thing)
    if function and str(thing.__annotations__.get("return")) != "None" and "Returns" not in said:
        found.append("Returns")
    if function and "Raises" not in said:
        found.append("Raises")
    return found if ">>> " in (inspect.getdoc(thing) or "") else [*found, "an example"]


@pytest.mark.parametrize(("name", "thing"), api().items(), ids=[*api()])
def test_it_says_what_it_takes_and_gives(name: str, thing: Any) -> None:
    assert not lacking(thing), f"the docstring of {name} lacks {', '.join(lacking(thing))}"


def test_methods_of_public_classes_have_a_docstring() -> None:
    classes = [one for one in api().values() if inspect.isclass(one)]
    assert ferry.Sink in classes and not [name for one in classes for name, m in members(one) if not inspect.getdoc(m)]


def wrong(name: str, thing: Any) -> str:
    """How the examples of a docstring fail, if they do."""
    said: list[str] = []
    test = doctest.DocTestParser().get_doctest(inspect.getdoc(thing) or "", named(), name, None, 0)
    doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(test, out=said.append)
    return "".join(said)


@pytest.mark.parametrize(("name", "thing"), api().items(), ids=[*api()])
def test_its_examples_run(name: str, thing: Any) -> None:
    assert not wrong(name, thing), wrong(name, thing)


def test_a_docstring_that_lacks_something_or_is_wrong_is_found() -> None:
    def halve(whole: int, upwards: bool) -> int:
        """Half of it.

        Parameters: `whole`, a number.
        Example:
            >>> 7 // 2
            4
        """
        return whole // 2

    assert lacking(halve) == ["upwards", "Returns", "Raises"]
    assert "Expected:\n    4\nGot:\n    3" in wrong("halve", halve)
    assert lacking(ferry.Stream.sink) == [] and "an example" in lacking(named)
    assert [one.__name__ for one in handed_out()][:3] == ["Stream", "KeyedStream", "WindowedStream"]
