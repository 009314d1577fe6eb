"""Documents that name tests: each test exists and is run, so that a table of what is shown stays true."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TABLES = ROOT / "docs" / "reference" / "operator-tests.md"
COMPARISON = ROOT / "docs" / "operating" / "comparison.md"

REFERENCE = re.compile(r"`(tests/[\w/]+\.py)(?:::(test_\w+))?`")


def runs(file: Path) -> set[str]:
    """Names of the test functions of a file that no decorator skips."""
    found = set()
    for node in ast.parse(file.read_text("utf-8")).body:
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
            if not any(re.search(r"\bmark\.(skip|skipif|xfail)\b", ast.unparse(one)) for one in node.decorator_list):
                found.add(node.name)
    return found


def missing(text: str, root: Path = ROOT) -> list[str]:
    """References to tests that do not exist or do not run."""
    wrong = []
    for path, name in REFERENCE.findall(text):
        file = root / path
        if not file.is_file() or (name and name not in runs(file)):
            wrong.append(f"{path}::{name}" if name else path)
    return wrong


def rows(text: str, heading: str) -> list[list[str]]:
    """The rows of the table below a heading, without its head."""
    section = re.split(r"^## ", text.partition(f"## {heading}\n")[2], flags=re.MULTILINE)[0]
    lines = [line for line in section.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


@pytest.mark.parametrize("document", [TABLES, COMPARISON], ids=lambda path: path.stem)
def test_every_named_test_exists(document: Path) -> None:
    text = document.read_text("utf-8")
    assert len(REFERENCE.findall(text)) > 8
    assert missing(text) == []


@pytest.mark.parametrize(("heading", "count"), [("Demands", 24), ("Findings of a review", 16)])
def test_each_row_has_a_test_or_says_that_it_is_open(heading: str, count: int) -> None:
    table = rows(TABLES.read_text("utf-8"), heading)
    assert [row[0] for row in table] == [str(number) for number in range(1, count + 1)]
    for number, _, state, tests in table:
        assert state == "shown" or state.startswith(("partly: ", "open: ")), number
        assert "::test_" in tests or state.startswith("open: "), f"row {number} names no test"


def test_each_line_of_the_comparison_has_a_test_of_ours() -> None:
    text = COMPARISON.read_text("utf-8")
    for heading in ("What Ferry has and the others have not", "What others have, too"):
        table = rows(text, heading)
        assert len(table) >= 5
        assert all(REFERENCE.search(row[1]) for row in table), heading


def test_a_reference_to_nothing_is_found(tmp_path: Path) -> None:
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_a.py").write_text(
        "import pytest\n\n\ndef test_x(): ...\n\n\n@pytest.mark.skip\ndef test_y(): ...\n"
    )
    text = "`tests/test_a.py::test_x` `tests/test_a.py::test_y` `tests/test_a.py::test_z` `tests/test_b.py`"
    assert missing(text, tmp_path) == ["tests/test_a.py::test_y", "tests/test_a.py::test_z", "tests/test_b.py"]
