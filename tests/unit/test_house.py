"""Rules of the house that no linter knows. They are a ratchet: they may get stricter, never looser.

Each rule is a function from one source file to complaints, so that every rule is also tried on a file that breaks it.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

LINES_MAX = 400
LONGER: dict[str, int] = {}
"""Files that are longer than LINES_MAX, with the length they may have. Numbers only go down; entries only go away."""

IMPORTERS_MAX = {
    "cryptography": 1,
    "pyverbs": 1,
    "duckdb": 1,
    "fastapi": 2,  # the driver's control endpoint, the supervisor's
    "uvicorn": 2,
    "matplotlib": 1,
    "kopf": 1,
    "kubernetes": 1,
    "redis": 1,
}
"""In how many files a library may be imported: what can be replaced, or be missing, has one place."""

NUMBA_DECORATORS = {"njit", "jit", "vectorize", "guvectorize", "cfunc", "overload"}


@dataclass(frozen=True)
class Source:
    """One Python file of a package: its path from the root of the repository, and its text."""

    path: str
    text: str

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.text, self.path)

    def imports(self) -> Iterator[tuple[str, str | None]]:
        """(module, name or None) of every import, wherever it stands in the file; relative ones made absolute."""
        parts = Path(self.path).with_suffix("").parts[1:]
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Import):
                yield from ((alias.name, None) for alias in node.names)
            elif isinstance(node, ast.ImportFrom):
                base = list(parts[: -node.level]) if node.level else []
                module = ".".join([*base, *([node.module] if node.module else [])])
                yield from ((module, alias.name) for alias in node.names)

    def numba_functions(self) -> set[str]:
        """Names of the functions of this file that numba compiles."""
        found = set()
        for node in ast.walk(self.tree):
            if isinstance(node, ast.FunctionDef) and any(_is_numba(d) for d in node.decorator_list):
                found.add(node.name)
            elif isinstance(node, ast.Assign) and isinstance(node.value, ast.Call) and _is_numba(node.value.func):
                found.update(target.id for target in node.targets if isinstance(target, ast.Name))
        return found


def _is_numba(node: ast.expr) -> bool:
    while isinstance(node, ast.Call):
        node = node.func
    name = node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""
    return name in NUMBA_DECORATORS


def sources() -> list[Source]:
    """All files of the two packages."""
    files = [*(ROOT / "runtime").rglob("*.py"), *(ROOT / "operator").rglob("*.py")]
    return [Source(f.relative_to(ROOT).as_posix(), f.read_text("utf-8")) for f in sorted(files)]


SOURCES = sources()


def numba_names(files: list[Source]) -> set[str]:
    """Dotted names of all compiled functions, e.g. 'ferry.kernels.table.put'."""
    return {f"{'.'.join(Path(f.path).with_suffix('').parts[1:])}.{name}" for f in files for name in f.numba_functions()}


COMPILED = numba_names(SOURCES)


def has_docstring(source: Source) -> list[str]:
    """A module says what it is; an empty file has nothing to say."""
    if not source.text.strip() or ast.get_docstring(source.tree):
        return []
    return ["has no docstring that says what the module is"]


def has_plain_name(source: Source) -> list[str]:
    """A module is named after what it holds."""
    stem = Path(source.path).stem.strip("_")
    return (
        [f"is called '{stem}', which says nothing"] if stem in {"util", "utils", "common", "helper", "helpers"} else []
    )


def is_short(source: Source) -> list[str]:
    """A file fits into one head."""
    lines, bound = source.text.count("\n"), LONGER.get(source.path, LINES_MAX)
    return [f"has {lines} lines, {bound} are allowed"] if lines > bound else []


def formats_by_hand_only_tables(source: Source) -> list[str]:
    """The formatter has the last word, but for tables of a module."""
    values = (ast.Dict, ast.List, ast.Tuple, ast.Call)
    tables = {
        node.end_lineno
        for node in source.tree.body
        if isinstance(node, ast.Assign | ast.AnnAssign) and isinstance(node.value, values)
    }
    lines = enumerate(source.text.splitlines(), 1)
    return [
        f"line {n} is formatted by hand, and is no table"
        for n, line in lines
        if "fmt: skip" in line and n not in tables
    ]


def builds_one_field_a_line(source: Source) -> list[str]:
    """What a constructor sets can be read from top to bottom."""
    packed = [
        node.lineno
        for init in ast.walk(source.tree)
        if isinstance(init, ast.FunctionDef) and init.name == "__init__"
        for node in ast.walk(init)
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Tuple) and isinstance(node.value, ast.Tuple)
        if all(ast.unparse(target).startswith("self.") for target in node.targets[0].elts)
    ]
    return [f"line {n} sets several fields at once" for n in packed]


def never_pickles(source: Source) -> list[str]:
    """Bytes from another process are data, never code."""
    banned = {"pickle", "cloudpickle", "dill", "marshal", "shelve"}
    return [f"imports {module}" for module, _ in source.imports() if module.split(".")[0] in banned]


def names_no_machine_path(source: Source) -> list[str]:
    """Where files go is a setting or the system's temporary folder."""
    return [f"names {found}" for found in re.findall(r"(?<![\w.}/])/(?:tmp|root|work|home|Users)(?:/|\b)", source.text)]


def kernel_stands_alone(source: Source) -> list[str]:
    """Numba's cache does not see a change in another file: a compiled function calls only those of its own file."""
    if not source.numba_functions():
        return []
    complaints = []
    for module, name in source.imports():
        if name is not None and f"{module}.{name}" in COMPILED:
            complaints.append(f"imports the compiled function {module}.{name}")
        elif f"{module}.{name}" in _COMPILED_MODULES or (name is None and module in _COMPILED_MODULES):
            complaints.append(f"imports {module}, which holds compiled functions, as a whole")
        elif name == "*" and module in _COMPILED_MODULES:
            complaints.append(f"imports everything of {module}, which holds compiled functions")
    return complaints


_COMPILED_MODULES = {name.rpartition(".")[0] for name in COMPILED}


RULES: list[Callable[[Source], list[str]]] = [
    has_docstring,
    has_plain_name,
    is_short,
    formats_by_hand_only_tables,
    builds_one_field_a_line,
    never_pickles,
    names_no_machine_path,
    kernel_stands_alone,
]


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_every_file_keeps_the_rule(rule: Callable[[Source], list[str]]) -> None:
    assert SOURCES, "no source files were found"
    complaints = [f"{source.path} {complaint}" for source in SOURCES for complaint in rule(source)]
    assert not complaints, "\n".join(complaints)


@pytest.mark.parametrize(
    ("rule", "path", "text"),
    [
        (has_docstring, "runtime/ferry/x.py", "import os\n"),
        (has_plain_name, "runtime/ferry/store/_utils.py", '"""Doc."""\n'),
        (is_short, "runtime/ferry/x.py", "x = 1\n" * (LINES_MAX + 1)),
        (formats_by_hand_only_tables, "runtime/ferry/x.py", "def f(\n    a, b,\n):  # fmt: skip\n    return a\n"),
        (
            builds_one_field_a_line,
            "runtime/ferry/x.py",
            "class X:\n    def __init__(self, a, b):\n        self.a, self.b = a, b\n",
        ),
        (never_pickles, "runtime/ferry/x.py", "def f():\n    from pickle import loads\n"),
        (never_pickles, "runtime/ferry/x.py", "import cloudpickle.fast\n"),
        (names_no_machine_path, "runtime/ferry/x.py", "P = '/tmp/ferry'\n"),
        (names_no_machine_path, "runtime/ferry/x.py", "# see /home/me\n"),
    ],
)
def test_a_rule_sees_what_breaks_it(rule: Callable[[Source], list[str]], path: str, text: str) -> None:
    assert rule(Source(path, text))


def test_a_kernel_that_borrows_from_another_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    lender = Source("runtime/ferry/kernels/a.py", "@njit(cache=True)\ndef put(x):\n    return x\nget = numba.njit(f)\n")
    monkeypatch.setattr(f"{__name__}.COMPILED", numba_names([lender]), raising=True)
    monkeypatch.setattr(f"{__name__}._COMPILED_MODULES", {"ferry.kernels.a"}, raising=True)
    own = "\n@numba.njit\ndef mine(x):\n    return x\n"
    borrowing = ["from ferry.kernels.a import put", "from .a import get", "import ferry.kernels.a", "from . import a"]
    for line in borrowing:
        assert kernel_stands_alone(Source("runtime/ferry/kernels/b.py", line + own)), line
    assert not kernel_stands_alone(Source("runtime/ferry/kernels/b.py", "from ferry.kernels.a import SIZE" + own))
    assert not kernel_stands_alone(Source("runtime/ferry/store/c.py", "from ferry.kernels.a import put\n"))


def public_classes(files: list[Source]) -> dict[str, list[str]]:
    """Where each public class name is defined."""
    found: dict[str, list[str]] = {}
    for source in files:
        for node in source.tree.body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                found.setdefault(node.name, []).append(source.path)
    return found


def test_a_class_name_has_one_meaning() -> None:
    twice = {name: paths for name, paths in public_classes(SOURCES).items() if len(paths) > 1}
    assert not twice, f"choose another name for one of them: {twice}"
    again = [Source("runtime/ferry/a.py", "class X: pass\n"), Source("runtime/ferry/b.py", "class X: pass\n")]
    assert public_classes(again) == {"X": ["runtime/ferry/a.py", "runtime/ferry/b.py"]}


def test_exceptions_are_still_needed() -> None:
    """A file that became short again leaves the list, so that it stays short."""
    lengths = {source.path: source.text.count("\n") for source in SOURCES}
    stale = [path for path in LONGER if lengths.get(path, 0) <= LINES_MAX]
    assert not stale, f"remove from LONGER: {stale}"


@pytest.mark.parametrize("library", sorted(IMPORTERS_MAX))
def test_a_library_has_one_place(library: str) -> None:
    importers = [s.path for s in SOURCES if any(module.split(".")[0] == library for module, _ in s.imports())]
    assert len(importers) <= IMPORTERS_MAX[library], f"{library} is imported by {importers}"


def test_the_operator_folder_is_no_package() -> None:
    """`operator/__init__.py` would shadow the standard library's `operator`."""
    assert not (ROOT / "operator" / "__init__.py").exists()
    assert not (ROOT / "runtime" / "__init__.py").exists()
    assert "operator" not in Path(inspect.getfile(importlib.import_module("operator"))).parent.name


def test_ferry_shows_what_it_means_to_show() -> None:
    """`ferry.__all__` is sorted, complete and honest: exactly the names that have a home, and each can be had."""
    ferry = importlib.import_module("ferry")
    names = list(getattr(ferry, "__all__", []))
    assert names == sorted(set(names))
    assert all(hasattr(ferry, name) for name in names)
    public = {n for n in dir(ferry.contract.errors) if n in names} | {n for home in ferry._HOMES.values() for n in home}
    assert public == set(names)
    functions = importlib.import_module("ferry.kernels.aggregates")
    assert set(functions.__all__) == set(functions.FUNCTIONS), "a function is entered by the word that pipelines use"
    assert all(getattr(ferry, word) is getattr(functions, word) for word in functions.__all__)
    code = "import sys; from ferry import environment; sys.exit('pyarrow' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0, "rooms are there without Arrow"
    assert not hasattr(ferry, "FUNCTIONS") and not hasattr(ferry, "_nothing") and not hasattr(ferry, "nothing")


def test_readme_explains_the_nouns_of_the_contract() -> None:
    """The glossary holds the words that the contract's names are made of."""
    glossary = (ROOT / "README.md").read_text("utf-8").partition("## The words")[2].partition("\n## ")[0].lower()
    nouns = importlib.import_module("ferry.contract.names")
    words = {
        "Vnode": "vnode",
        "InstanceId": "instance",
        "Generation": "generation",
        "Attempt": "attempt",
        "Term": "term",
    }
    for name, word in words.items():
        assert hasattr(nouns, name), f"ferry.contract.names lost {name}; mend this test and the glossary together"
        assert word in glossary, f"README.md does not explain '{word}'"


def test_documents_name_files_that_exist() -> None:
    """A Makefile target or a script that the README names is there."""
    readme = (ROOT / "README.md").read_text("utf-8")
    makefile = (ROOT / "Makefile").read_text("utf-8")
    for target in sorted(set(re.findall(r"\bmake ([a-z-]+)", readme))):
        assert re.search(rf"^(?:[a-z -]*\s)?{target}\b[a-z -]*:", makefile, re.MULTILINE), f"no target '{target}'"
