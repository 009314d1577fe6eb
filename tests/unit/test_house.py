"""Rules of the house that no linter knows. They are a ratchet: they may get stricter, never looser.

Each rule is a function from one source file to complaints, so that every rule is also tried on a file that breaks it.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import io
import os
import re
import subprocess
import sys
import tokenize
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
    "confluent_kafka": 1,
    "deltalake": 1,
    "psycopg": 1,
    "pyiceberg": 1,
    "cryptography": 2,  # certificates, and texts that pass through Redis
    "pyverbs": 1,
    "duckdb": 1,
    "fastavro": 1,
    "fastapi": 2,  # the driver's control endpoint, the supervisor's
    "uvicorn": 1,
    "wsgiref": 1,
    "http": 0,
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
    """All files of the packages that are installed."""
    files = [file for root in ("runtime", "operator", "bench/workloads") for file in (ROOT / root).rglob("*.py")]
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


RENAMES = {
    "runtime/ferry/system/files.py": "files that are replaced whole",
    "runtime/ferry/contract/timeline.py": "a part of the timeline that is full",
    "runtime/ferry/durable/copies.py": "a file that is written a part at a time, beside one in a store",
    "runtime/ferry/driver/dead_letters.py": "a folder that tasks have written to",
    "runtime/ferry/connectors/files/parquet_sink.py": "a folder that tasks have written to, and a damaged one",
    "runtime/ferry/store/segments.py": "a file that is written a part at a time, between other work",
    "runtime/ferry/system/user_module.py": "the folder of a program, which other processes may write as well",
}
"""Who renames what. To write a file and then rename it is `ferry.system.files.replacing`."""


def replaces_files_in_one_place(source: Source) -> list[str]:
    """What is left behind by a write that fails, and what is on the disk when, is thought out once."""
    calls = (node.func for node in ast.walk(source.tree) if isinstance(node, ast.Call))
    renames = {
        ast.unparse(f)
        for f in calls
        if isinstance(f, ast.Attribute) and (f.attr in ("rename", "renames") or ast.unparse(f) == "os.replace")
    }
    return [] if source.path in RENAMES else [f"calls {name}" for name in sorted(renames)]


def variables_of(source: Source) -> set[str]:
    """Names of Ferry's environment variables that a file spells."""
    nodes = list(ast.walk(source.tree))
    texts = {n.value for n in nodes if isinstance(n, ast.Constant) and isinstance(n.value, str)}
    return {
        t
        for t in texts | {n.arg or "" for n in nodes if isinstance(n, ast.keyword)}
        if re.fullmatch(r"FERRY_[A-Z_]+", t)
    }


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


PRIVATE_WORDS = {
    "beating", "carrier", "crew", "deal", "deals", "dealt", "desk", "drowse", "graves", "hurried", "in_step", "inforce", "keeper", "meters", "mind",
    "mute", "nudge", "said", "scrape", "shelf", "sightings", "slumber", "strangers", "told", "trial", "trouble", "troubles",
    "turnover", "untouched", "wish", "wishes",
}  # fmt: skip
"""Words that the field has others for (docs/concepts/words.md), and verbs with many meanings."""


def defined_names(source: Source) -> Iterator[tuple[int, str]]:
    """(line, name) of all that a file gives a name to."""
    yield 1, Path(source.path).stem
    for node in ast.walk(source.tree):
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                yield node.lineno, node.name
            case ast.arg():
                yield node.lineno, node.arg
            case ast.Name(ctx=ast.Store()):
                yield node.lineno, node.id
            case ast.Attribute(ctx=ast.Store()):
                yield node.lineno, node.attr


def uses_words_of_the_field(source: Source) -> list[str]:
    """A name is understood by who knows Flink, Kafka and Kubernetes, and not Ferry."""
    complaints = []
    for line, name in defined_names(source):
        words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower().strip("_")
        found = [word for word in PRIVATE_WORDS if re.search(rf"(^|_){word}(_|$)", words)]
        complaints += [f"line {line} calls something '{name}': find the field's word for '{word}'" for word in found]
    return complaints


PRIVATE_ATTRIBUTES = {"_jvm", "_jdf", "_jsc", "_jconf", "_jsparkSession", "_gateway", "_ensure_initialized"}
PRIVATE_MODULES = {"pyspark.daemon", "pyspark.worker", "pyspark.serializers", "pyspark.java_gateway", "pyspark.core"}


def touches_private_spark_in_one_file(source: Source) -> list[str]:
    """Another version of Spark changes one file, and its self-test names what is gone."""
    if source.path == "runtime/ferry/spark/private.py":
        return []
    nodes = (node for node in ast.walk(source.tree) if isinstance(node, ast.Attribute))
    names = {node.attr for node in nodes if node.attr in PRIVATE_ATTRIBUTES}
    modules = {module for module, _ in source.imports() if module in PRIVATE_MODULES}
    return [f"uses {name}: that belongs to ferry/spark/private.py" for name in sorted(names | modules)]


PLACEHOLDERS = {"asked", "found", "given", "made", "one", "some", "what"}
"""Names that fit every value. A reader who sees the binding may be content with them; five lines later nobody knows."""

PLACEHOLDER_LINES = 5

_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
_SCOPES = (*_FUNCTIONS, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


def _binds(scope: ast.AST) -> Iterator[str]:
    """Placeholders that a module, function or comprehension binds itself."""
    for node in ast.iter_child_nodes(scope):
        match node:
            case ast.arg(arg=name) | ast.Name(id=name, ctx=ast.Store()) if name in PLACEHOLDERS:
                yield name
        if not isinstance(node, (*_SCOPES, ast.ClassDef)):
            yield from _binds(node)


def _placeholders(node: ast.AST, outer: list[dict[str, list[int]]]) -> Iterator[tuple[str, list[int]]]:
    """(name, lines of its binding and uses) of every placeholder at or below a node."""
    own: dict[str, list[int]] = {name: [] for name in _binds(node)} if isinstance(node, (*_SCOPES, ast.Module)) else {}
    scopes = [own, *outer]
    name = node.id if isinstance(node, ast.Name) else node.arg if isinstance(node, ast.arg) else ""
    for scope in scopes:
        if name in scope:
            scope[name].append(node.lineno)  # type: ignore[attr-defined]
            break
    for child in ast.iter_child_nodes(node):
        yield from _placeholders(child, scopes)
    yield from own.items()


def names_no_placeholder(source: Source) -> list[str]:
    """A value that is used over more than a few lines has the name of what it is."""
    spans = [(name, min(lines), max(lines)) for name, lines in _placeholders(source.tree, []) if lines]
    return [
        f"lines {first} to {last} call something '{name}'"
        for name, first, last in sorted(spans, key=lambda span: span[1])
        if last - first >= PLACEHOLDER_LINES
    ]


HARD_PHRASES = [
    r"what has",
    r"who (?:has|had|is|was|knows|asks|asked|reads|holds|needs|writes|waits)",
    r"of whom",
    r"of which one",
    r"those (?:of|that|who)",
    r"that of",
    r"(?<!not )so (?:many|much|long|often)",
    r"nobody",
    r"none (?:of|that|who|has|is|are)",
    r"everybody",
    r"whoever",
    r"knows? better",
    r"(?<!there )is no such",
    r"(?:some|any|no)thing else than",
    r"by itself",
    r"the one (?:that|who|of)",
    r"of before",
    r"said aloud",
    r"(?:is|are|was|were) told(?! to)",
    r"(?<=,) for (?:it|they|its|their|this|that|what|no|nothing|there|then)",
    r"(?<!soon )as it is(?=[.,;:)]|$)",
    r"heaps? up",
    r"See \w+\.\w+\.(?=\W|$)",
]
"""Turns of phrase that a reader has to read twice: a relative clause where a noun belongs, a pronoun without a noun,
'nobody' where a verb wants 'not', 'so many' where a number wants 'this many', 'for' where 'because' is meant."""

_HARD = re.compile(rf"(?<!\w)(?:{'|'.join(HARD_PHRASES)})(?!\w)", re.IGNORECASE)


def hard_phrases(text: str) -> list[str]:
    """The hard phrases of a text, whose lines may break anywhere."""
    return _HARD.findall(re.sub(r"\s+(?:#\s+)?", " ", text))


def reads_plainly(source: Source) -> list[str]:
    """Subject, verb, noun: docstrings, comments, texts of errors and logs are understood when read once."""
    texts = [(n.lineno, n.value) for n in ast.walk(source.tree) if isinstance(n, ast.Constant) and type(n.value) is str]
    tokens = tokenize.generate_tokens(io.StringIO(source.text).readline)
    texts += [(token.start[0], token.string) for token in tokens if token.type == tokenize.COMMENT]
    return [f"line {line}: '{phrase}' is hard to read" for line, text in texts for phrase in hard_phrases(text)]


RULES: list[Callable[[Source], list[str]]] = [
    touches_private_spark_in_one_file,
    names_no_placeholder,
    reads_plainly,
    uses_words_of_the_field,
    has_docstring,
    has_plain_name,
    is_short,
    formats_by_hand_only_tables,
    builds_one_field_a_line,
    never_pickles,
    names_no_machine_path,
    replaces_files_in_one_place,
    kernel_stands_alone,
]


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_every_file_keeps_the_rule(rule: Callable[[Source], list[str]]) -> None:
    assert SOURCES, "no source files were found"
    complaints = [f"{source.path} {complaint}" for source in SOURCES for complaint in rule(source)]
    assert not complaints, "\n".join(complaints)


def texts() -> list[Path]:
    """Documents, definitions, settings and scripts of the repository, without packages, frozen releases and outputs of commands."""
    files = [*ROOT.glob("*"), *(path for folder in TEXT_FOLDERS for path in (ROOT / folder).rglob("*"))]
    kept = {ROOT / "tests" / "released", ROOT / "docs" / "errors"}
    plain = {path for path in files if path.suffix in TEXT_SUFFIXES and kept.isdisjoint(path.parents)}
    plain |= {path for folder in (".ci", "images", "scripts") for path in (ROOT / folder).rglob("*")}
    return sorted(path for path in plain | {ROOT / "Makefile"} if path.is_file() and path.suffix != ".pyc")


TEXT_FOLDERS = (".github", "bench", "charts", "crds", "docs", "examples", "operator", "runtime", "tests")

TEXT_SUFFIXES = {".md", ".sh", ".toml", ".tpl", ".txt", ".yaml", ".yml"}


def test_documents_read_plainly() -> None:
    """The target of a link may be a hard phrase: it is the name of a file."""
    phrases = {p.relative_to(ROOT): hard_phrases(re.sub(r"\]\([^)]*\)", "]", p.read_text("utf-8"))) for p in texts()}
    assert {Path("Makefile"), Path("charts/ferry/templates/rbac.yaml"), Path("scripts/setup")} <= phrases.keys()
    assert not {str(path): found for path, found in phrases.items() if found}


@pytest.mark.parametrize(
    ("rule", "path", "text"),
    [
        (names_no_placeholder, "runtime/ferry/x.py", "def f(one):\n    a\n    b\n    c\n    d\n    return one\n"),
        (names_no_placeholder, "runtime/ferry/x.py", "for found in x:\n    a\n    b\n    c\n    d\n    y(found)\n"),
        (names_no_placeholder, "runtime/ferry/x.py", "x = [\n    a(made)\n\n\n\n\n    for made in y\n]\n"),
        (reads_plainly, "runtime/ferry/x.py", "# Nothing waits, for nobody asks.\n"),
        (reads_plainly, "runtime/ferry/x.py", '"""Those of\nthe others."""\n'),
        (reads_plainly, "runtime/ferry/x.py", 'raise Fault(f"{x} is no such worker")\n'),
        (reads_plainly, "runtime/ferry/x.py", 'def f():\n    """See Channel.send."""\n'),
        (has_docstring, "runtime/ferry/x.py", "import os\n"),
        (has_plain_name, "runtime/ferry/store/_utils.py", '"""Doc."""\n'),
        (is_short, "runtime/ferry/x.py", "x = 1\n" * (LINES_MAX + 1)),
        (formats_by_hand_only_tables, "runtime/ferry/x.py", "def f(\n    a, b,\n):  # fmt: skip\n    return a\n"),
        (
            builds_one_field_a_line,
            "runtime/ferry/x.py",
            "class X:\n    def __init__(self, a, b):\n        self.a, self.b = a, b\n",
        ),
        (touches_private_spark_in_one_file, "runtime/ferry/spark/x.py", "def f(frame):\n    return frame._jdf\n"),
        (touches_private_spark_in_one_file, "runtime/ferry/driver/x.py", "def f():\n    import pyspark.worker\n"),
        (uses_words_of_the_field, "runtime/ferry/x.py", "def f(x):\n    x.last_told = 1\n"),
        (uses_words_of_the_field, "runtime/ferry/x.py", "class DriverTrouble: pass\n"),
        (uses_words_of_the_field, "runtime/ferry/driver/meters.py", ""),
        (never_pickles, "runtime/ferry/x.py", "def f():\n    from pickle import loads\n"),
        (never_pickles, "runtime/ferry/x.py", "import cloudpickle.fast\n"),
        (names_no_machine_path, "runtime/ferry/x.py", "P = '/tmp/ferry'\n"),
        (names_no_machine_path, "runtime/ferry/x.py", "# see /home/me\n"),
        (replaces_files_in_one_place, "runtime/ferry/x.py", "os.replace(a, b)\n"),
        (replaces_files_in_one_place, "runtime/ferry/x.py", "def f(a):\n    a.parent.rename(b)\n"),
    ],
)
def test_a_rule_sees_what_breaks_it(rule: Callable[[Source], list[str]], path: str, text: str) -> None:
    assert rule(Source(path, text))


def test_a_placeholder_may_be_short_lived() -> None:
    """Each binding counts alone: two comprehensions, two functions; a field is no variable."""
    text = "x = [a(one) for one in y]\n" + "\n" * 9 + "z = [a(one) for one in y]\nclass C:\n    one: int\n"
    assert not names_no_placeholder(Source("x.py", text + "def f(one):\n    return one\n"))
    assert not reads_plainly(Source("x.py", "# Not so much; there is no such job, for a while.\n"))


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


def circles(files: list[Source]) -> list[list[str]]:
    """Modules that import each other, directly or through others; imports for types count, too."""
    names = {".".join(Path(file.path).with_suffix("").parts[1:]).removesuffix(".__init__") for file in files}
    arrows: dict[str, set[str]] = {}
    for file in files:
        own = ".".join(Path(file.path).with_suffix("").parts[1:]).removesuffix(".__init__")
        found = {f"{module}.{name}" if f"{module}.{name}" in names else module for module, name in file.imports()}
        arrows[own] = (found & names) - {own}

    def reached(begin: str) -> set[str]:
        seen: set[str] = set()
        left = [begin]
        while left:
            left += [other for other in arrows[left.pop()] if other not in seen and not seen.add(other)]  # type: ignore[func-returns-value]
        return seen

    reach = {name: reached(name) for name in arrows}
    groups = {
        frozenset(other for other in reach[name] if name in reach[other]) for name in arrows if name in reach[name]
    }
    return sorted(sorted(group) for group in groups)


def test_no_module_imports_itself_through_others() -> None:
    """`import ferry` itself is the top: it loads each name when it is first used, and nothing below imports it."""
    assert circles([source for source in SOURCES if source.path != "runtime/ferry/__init__.py"]) == []


def test_a_circle_is_seen_also_of_types() -> None:
    a = Source("runtime/ferry/a.py", "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from ferry.b import B\n")
    b = Source("runtime/ferry/b.py", "from ferry import c\n")
    c = Source("runtime/ferry/c.py", "def f():\n    import ferry.a\n")
    assert circles([a, b, c]) == [["ferry.a", "ferry.b", "ferry.c"]]
    assert circles([a, b]) == []


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


def test_a_file_that_renames_nothing_any_more_leaves_the_table() -> None:
    found = {s.path for s in SOURCES if replaces_files_in_one_place(Source("x", s.text))}
    assert found == set(RENAMES)


def test_an_environment_variable_is_spelled_in_one_file() -> None:
    spelled: dict[str, list[str]] = {}
    for source in SOURCES:
        for name in variables_of(source):
            spelled.setdefault(name, []).append(source.path)
    twice = {name: paths for name, paths in spelled.items() if len(paths) > 1}
    assert "FERRY_HOST" in spelled and not twice, f"have it in contract/variables.py: {twice}"
    assert variables_of(Source("x.py", "start(FERRY_A=read('FERRY_B'))\n")) == {"FERRY_A", "FERRY_B"}


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


def names_for_types() -> set[str]:
    """The names that `ferry/__init__.py` lists for type checkers."""
    (source,) = [s for s in SOURCES if s.path == "runtime/ferry/__init__.py"]
    assigned = [
        n for n in ast.walk(source.tree) if isinstance(n, ast.Assign) and "__all__" in ast.unparse(n.targets[0])
    ]
    (names,) = [ast.literal_eval(node.value) for node in assigned]
    return set(names)


def test_ferry_shows_what_it_means_to_show() -> None:
    """`ferry.__all__` is sorted, complete and honest: exactly the names that have a home, and each can be had."""
    ferry = importlib.import_module("ferry")
    names = list(ferry.__all__)
    assert names == sorted(set(names))
    assert all(hasattr(ferry, name) for name in names)
    functions = importlib.import_module("ferry.kernels.aggregates")
    assert {n for home in ferry._HOMES.values() for n in home} | set(functions.__all__) == set(names)
    assert set(names) == names_for_types() | set(functions.__all__), "what mypy is told of"
    everything: dict[str, object] = {}
    exec("from ferry import *", everything)
    assert everything.keys() - {"__builtins__"} == set(names)
    assert set(functions.__all__) == set(functions.FUNCTIONS), "a function is entered by the word that pipelines use"
    assert all(getattr(ferry, word) is getattr(functions, word) for word in functions.__all__)
    code = "import sys; from ferry import environment; sys.exit('pyarrow' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0, "rooms are there without Arrow"
    assert not hasattr(ferry, "FUNCTIONS") and not hasattr(ferry, "_nothing") and not hasattr(ferry, "nothing")


def test_the_glossary_explains_the_nouns_of_the_contract() -> None:
    """It holds the words that the contract's names are made of."""
    glossary = (ROOT / "docs" / "concepts" / "words.md").read_text("utf-8").lower()
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
        assert word in glossary, f"docs/concepts/words.md does not explain '{word}'"


def strays(source: Source) -> list[str]:
    """What a file of `bench` imports although it belongs to another command."""
    own = ".".join(Path(source.path).parts[1:3]) if source.path.startswith("bench/parts/") else Path(source.path).stem
    mine = f"bench.parts.{own.removeprefix('parts.').removesuffix('_kube')}"
    modules = {
        f"{module}.{name}" if module in ("bench", "bench.parts") else module for module, name in source.imports()
    }
    ours = sorted(module for module in modules if module.startswith("bench."))
    return [m for m in ours if not f"{m}.".startswith(("bench.shared.", f"{mine}."))]


def test_the_parts_of_a_measurement_are_its_own() -> None:
    """What two commands of `bench` need is in `bench/shared`; nothing of Ferry needs any of it."""
    files = [Source(f.relative_to(ROOT).as_posix(), f.read_text("utf-8")) for f in (ROOT / "bench").rglob("*.py")]
    assert len(files) > 9 and not {f.path: strays(f) for f in files if strays(f)}
    assert not [s.path for s in SOURCES if any(module.split(".")[0] == "bench" for module, _ in s.imports())]
    wrong = "from bench.parts.demo import oracle\nfrom bench.shared import results\nfrom bench import demo\n"
    assert strays(Source("bench/handover.py", wrong)) == ["bench.demo", "bench.parts.demo"]
    assert strays(Source("bench/shared/results.py", wrong)) == ["bench.demo", "bench.parts.demo"]
    assert strays(Source("bench/parts/demo/telling.py", wrong)) == ["bench.demo"]


def documents() -> list[Path]:
    """What a reader is given, but for decision records and notes of measurements: these say what was so on their day."""
    records = {ROOT / "docs" / "decisions", ROOT / "bench" / "log"}
    found = [*ROOT.glob("*.md")]
    for folder in ("bench", "charts", "docs", "images", "operator", "runtime", "tests"):
        found += (ROOT / folder).rglob("*.md")
    return sorted(path for path in found if records.isdisjoint(path.parents))


ROOTS = (".", "runtime", "runtime/ferry", "operator/ferry_operator", "operator/ferry_operator/kube")
"""From where documents name files, beside their own folder."""

NOT_IN_A_CLONE = {
    "DIR/job.py", "DIR/nothing.py", "JOB.yaml", "bench/X.py", "bench/results", "build/flink", "build/site", "job.py", "sales.yaml"
}  # fmt: skip


def missing_files(document: Path, text: str, folders: set[str]) -> list[str]:
    """Files that a document names in backticks or links to, and that are not there. `folders`: names of ours."""
    prose = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
    words = {word.rstrip(",:;/") for span in re.findall(r"`([^`\n]+)`", prose) for word in span.split()}
    named = {
        w for w in words - NOT_IN_A_CLONE if re.fullmatch(r"[\w.*-]+(/[\w.*-]+)*", w) and "*" not in w.split("/")[0]
    }
    named = {w for w in named if re.search(r"\.(py|md|sh|toml|yaml)$", w) or ("/" in w and w.split("/")[0] in folders)}
    bases = [document.parent, *(ROOT / base for base in ROOTS)]
    missing = [w for w in named if not any(any(base.glob(w)) for base in bases)]
    if document.name == "ARCHITECTURE.md":  # names files of the room that it speaks of
        missing = [w for w in missing if "/" in w or not any(document.parent.rglob(w))]
    links = re.findall(r"\]\((?!https?:)([^)#]+)", prose)
    return sorted([*missing, *(link for link in links if not (document.parent / link).exists())])


def test_documents_name_files_that_exist() -> None:
    """A file that a document names is there, and so is a target of `make`."""
    folders = {path.name for path in ROOT.glob("*/") if not path.name.startswith(".")}
    folders |= {
        path.name for base in ROOTS for path in (ROOT / base).glob("*/") if not path.name.startswith((".", "_"))
    }
    assert ROOT / "docs" / "design.md" in documents()
    missing = {str(d.relative_to(ROOT)): missing_files(d, d.read_text("utf-8"), folders) for d in documents()}
    assert not {d: files for d, files in missing.items() if files}
    broken = "`store/no.py`, `sidecar/no`, `no.py` [x](no.md#y) and `driver/epochs.py`, `k8s.io/no` ```no.sh```"
    assert missing_files(ROOT / "docs" / "x.md", broken, folders) == ["no.md", "no.py", "sidecar/no", "store/no.py"]
    readers = "".join(d.read_text("utf-8") for d in documents())
    makefile = (ROOT / "Makefile").read_text("utf-8")
    for target in sorted(set(re.findall(r"(?:`|^@?)make ([a-z-]+)", readers, re.MULTILINE))):
        assert re.search(rf"^(?:[a-z -]*\s)?{target}\b[a-z -]*:", makefile, re.MULTILINE), f"no target '{target}'"


def wrong_sections(files: dict[str, str], design: str) -> list[str]:
    """Places that cite a section of the design that it does not have."""
    there = set(re.findall(r"^## (\d+)\. ", design, re.MULTILINE))
    cited = [(path, n) for path, text in files.items() for n in re.findall(r"docs/design\.md, section (\d+)", text)]
    return [f"{path}: section {n}" for path, n in cited if n not in there]


def test_sections_of_the_design_that_are_cited_exist() -> None:
    design = (ROOT / "docs" / "design.md").read_text("utf-8")
    files = {s.path: s.text for s in SOURCES} | {str(d.relative_to(ROOT)): d.read_text("utf-8") for d in documents()}
    files |= {f"tests/sim/{f.name}": f.read_text("utf-8") for f in (ROOT / "tests" / "sim").glob("*.py")}
    assert any("docs/design.md, section" in text for text in files.values())
    assert not wrong_sections(files, design)
    assert wrong_sections({"a.py": "see docs/design.md, section 99"}, design) == ["a.py: section 99"]


def test_the_design_names_every_rule_once() -> None:
    """Each rule of the protocol keeps one of the invariants; what watches them is there."""
    design = (ROOT / "docs" / "design.md").read_text("utf-8")
    table = design.partition("\n## 4. ")[2].partition("\n## ")[0]
    rules = [*importlib.import_module("ferry.protocol.rules").Rules.__dataclass_fields__]
    assert rules and [rule for rule in rules if table.count(f"`{rule}`") != 1] == []
    checks = (ROOT / "tests" / "sim" / "checks.py").read_text("utf-8")
    named = re.findall(r"`Checks\.(\w+)`", table)
    assert named and [name for name in named if f"def {name}(self" not in checks] == []


@pytest.mark.parametrize("command", sorted(f.name for f in (ROOT / "bench").glob("[a-z]*.py")))
def test_a_command_of_bench_starts_from_anywhere(command: str, tmp_path: Path) -> None:
    """With the Python of .venv and nothing else: `scripts/setup` shows it the root of the clone."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    started = [str(ROOT / ".venv" / "bin" / "python"), str(ROOT / "bench" / command), "--help"]
    done = subprocess.run(started, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0 and "usage:" in done.stdout.lower(), done.stderr
