"""Lines of code of every query, beside those of Megaphone's Table 1 (VLDB 2019); `python -m tests.unit.workloads.test_lines`.

Counted are the lines of a job's module that hold code: sources, pipeline and what they call. Not counted are docstrings,
comments, blank lines and imports; of an imported job its lines are counted again, and those of a process that was written for
queries, but not the arguments that all jobs share, nor the generators, which are the input. How Megaphone's authors counted they do not say; their rustfmt breaks lines at 100
letters, ours at 120.
"""

from __future__ import annotations

import ast
import io
import tokenize
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
MODULES = ROOT / "bench" / "workloads" / "ferry_workloads" / "jobs"
PACKAGE = "ferry_workloads.jobs"
SHARED = {"arguments"}
PROCESSES = {"auctions"}
"""Modules beside the generators that hold a process of some queries."""

TABLE_1 = {
    "q1": (12, 16), "q2": (14, 18), "q3": (58, 41), "q4": (128, 74),
    "q5": (73, 46), "q6": (130, 74), "q7": (55, 54), "q8": (58, 29),
}  # fmt: skip
"""Lines of (timely dataflow alone, Megaphone). A query such as q4_updates is a form of q4."""

BLANK = (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER)


def lines(text: str) -> int:
    """Lines of a module that hold code."""
    code = set[int]()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in BLANK:
            code |= {*range(token.start[0], token.end[0] + 1)}
    for node in ast.walk(ast.parse(text)):
        words = (
            isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
        )
        if words or isinstance(node, ast.Import | ast.ImportFrom):
            code -= {*range(node.lineno, (node.end_lineno or 0) + 1)}
    return len(code)


def modules(query: str, folder: Path = MODULES) -> set[str]:
    """The module of a query, and those of other queries that it takes something from."""
    found = {query}
    for node in ast.walk(ast.parse((folder / f"{query}.py").read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(PACKAGE):
            named = [a.name for a in node.names] if node.module == PACKAGE else [(node.module or "").split(".")[-1]]
            for other in {*named} - SHARED:
                found |= modules(other, folder)
        if isinstance(node, ast.ImportFrom) and (node.module or "").rpartition(".")[2] in PROCESSES:
            found.add(f"../{(node.module or '').rpartition('.')[2]}")
    return found


def of_query(query: str) -> int:
    """Lines of code that a query takes."""
    return sum(lines((MODULES / f"{module}.py").read_text()) for module in modules(query))


QUERIES = sorted({file.stem for file in MODULES.glob("*.py")} - SHARED - {"__init__"})


def table() -> str:
    """A line a query."""
    rows = [f"{'query':14} {'native':>8} {'Megaphone':>10} {'Ferry':>6}"]
    for query in QUERIES:
        native, megaphone = TABLE_1.get(query.split("_")[0], ("-", "-"))
        rows.append(f"{query:14} {native:>8} {megaphone:>10} {of_query(query):>6}")
    return "\n".join(rows)


def test_lines_of_code_beside_megaphones(capsys: pytest.CaptureFixture[str]) -> None:
    with capsys.disabled():
        print(f"\n{table()}")
    known = [query for query in QUERIES if query.split("_")[0] in TABLE_1]
    longer = {query: of_query(query) for query in known if of_query(query) > TABLE_1[query.split("_")[0]][1]}
    assert known and not longer, f"longer than Megaphone's: {longer}"


def test_what_is_a_line_of_code() -> None:
    text = '"""Doc.\n\nMore."""\n\nimport os\nfrom a import (\n    b,\n)\n\n# why\nx = """\ny\n"""\n\n\ndef f(\n    z,\n):\n    "Doc."\n    return z  # z\n'
    assert lines(text) == 3 + 3 + 1


def test_lines_of_another_job_that_is_imported_are_counted(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("import ferry\nfrom ferry_workloads.jobs import arguments, b\n")
    (tmp_path / "b.py").write_text("from ferry_workloads.jobs.c import pipeline\n")
    (tmp_path / "c.py").write_text("from ferry_workloads.jobs.arguments import delay\n")
    assert modules("a", tmp_path) == {"a", "b", "c"}


if __name__ == "__main__":
    print(table())
