"""The code of the documents for those who write jobs: it runs, in order, on the real classes without Spark.

What needs processes, the first job of the tutorial and what it has written, runs in tests/cluster.
"""

from __future__ import annotations

import doctest
import inspect
import re
import sys
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any, cast

import pytest
import yaml

import ferry
from ferry.api.pipeline import Build, Input, Output
from ferry.api.stream import Stream
from ferry.spark.compile import build
from ferry_operator.job import spec
from scripts.pages.api import handed_out, members
from tests.documents import DOCS, GUIDE, KUBERNETES, ROOT, TESTING, WALK, Block, blocks

COMING_FROM = DOCS / "from-spark-and-flink.md"
README = ROOT / "README.md"
DOCUMENTS = [*GUIDE, COMING_FROM, README]


class Streams(dict[str, Stream]):
    """Streams of what `sources` returns by now; a transform is not tried, and keeps all columns."""

    def __init__(self, namespace: dict[str, Any]) -> None:
        super().__init__()
        self.namespace = namespace
        self.build = Build(lambda function, schema, where: schema)

    def __missing__(self, name: str) -> Stream:
        schema = self.namespace["sources"](None, {"directory": "input"})[name].schema()
        return Stream(self.build, Input(name, (), schema, None, 0))


def run(found: list[Block]) -> dict[str, Any]:
    """Run blocks of Python, one after the other; what they have defined."""
    module = ModuleType("the_job_of_a_document")  # as its file is one: instances find a process by its module
    sys.modules[module.__name__] = module
    namespace = vars(module)
    namespace["ferry"] = ferry
    namespace["streams"] = Streams(namespace)
    for block in found:
        exec(compile(block.text, block.text.splitlines()[0], "exec"), namespace)
    return namespace


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda file: file.name)
def test_every_block_is_of_a_kind_that_is_run(document: Path) -> None:
    assert {block.language for block in blocks(document)} <= {"python", "yaml", "sh", "text"}
    assert document in (WALK, TESTING, README) or not [block for block in blocks(document) if block.session]


@pytest.mark.parametrize("pages", [GUIDE, [COMING_FROM], [README]], ids=["guide", "coming from", "README"])
def test_its_python_runs(pages: list[Path]) -> None:
    found = [b for page in pages for b in blocks(page) if b.language == "python" and not b.session]
    outputs = run(found).get("outputs", [])
    assert pages == [README] or (outputs and all(isinstance(output, Output) for output in outputs))


@pytest.mark.parametrize(("program", "page"), [(WALK, TESTING), (README, README)], ids=["guide", "README"])
def test_what_is_typed_in_a_test_answers_as_the_page_says(program: Path, page: Path) -> None:
    first = next(block for block in blocks(program) if block.language == "python")
    (session,) = [block for block in blocks(page) if block.session]
    said = list[str]()
    test = doctest.DocTestParser().get_doctest(session.text, run([first]), page.name, None, 0)
    doctest.DocTestRunner().run(test, out=said.append)
    assert not said, "".join(said)


def test_the_first_job_is_one() -> None:
    first = next(block for block in blocks(WALK) if block.language == "python")
    module = ModuleType("sales")
    exec(first.text, vars(module))
    plan = build(cast(Any, None), module, {"directory": "orders"})
    assert [operator.descriptor.name for operator in plan.operators] == ["sales"]


def test_its_job_files_are_valid() -> None:
    whole, *parts = [yaml.safe_load(block.text) for page in GUIDE for block in blocks(page) if block.language == "yaml"]
    assert spec.load(yaml.safe_dump(whole)).metadata.name == "sales" and len(parts) >= 11
    for part in parts:
        spec.load(yaml.safe_dump(whole | {"spec": whole["spec"] | part["spec"]}))


def test_every_step_and_function_is_named_in_one_of_them() -> None:
    text = "".join(document.read_text("utf-8") for document in DOCUMENTS)
    found = [found for one in handed_out() for found in members(one)]
    steps = {name.partition(".")[2] for name, step in found if inspect.isfunction(step)}
    functions = {name for name in ferry.__all__ if inspect.isfunction(getattr(ferry, name))}
    assert "aggregate" in steps and not [name for name in steps if not re.search(rf"\.{name}\(", text)]
    assert "sliding" in functions and not [name for name in functions if not re.search(rf"\b{name}\b", text)]


def test_names_that_they_use_are_there() -> None:
    text = "".join(document.read_text("utf-8") for document in DOCUMENTS)
    named = set(re.findall(r"\bferry\.([A-Za-z_]+)\b", text)) - {"dev"}
    assert named and not [n for n in named if not hasattr(ferry, n) and find_spec(f"ferry.{n}") is None]


def test_commands_for_kubernetes_are_those_of_the_quick_start_which_a_test_runs() -> None:
    _, quick, *others = [block for block in blocks(KUBERNETES) if block.language == "sh"]
    lines = [line for block in others for line in block.text.splitlines()]
    assert lines and not [line for line in lines if line not in quick.text.splitlines()]
