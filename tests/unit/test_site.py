"""The site builds without a warning, and holds what it is generated from: commands, names, metrics, and every error text."""

from __future__ import annotations

import ast
import html
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import ferry
from ferry_operator.cli.targets import hoist
from ferry_operator.control.commands import join_at
from scripts.pages import api, commands, errors, hooks, metrics
from tests.documents import DOCS, ROOT, blocks
from tests.unit.test_job_documents import DOCUMENTS

ERRORS = (DOCS / "reference" / "errors.md").read_text("utf-8")

HOW_TO = DOCS / "howto"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built as `make docs` builds it."""
    made = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(made)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return made


def text_of(page: Path) -> str:
    """The words of a page."""
    return html.unescape(re.sub(r"<[^>]+>", "", page.read_text("utf-8")))


def test_it_builds_without_a_warning_and_loads_nothing_from_elsewhere(site: Path) -> None:
    pages = [page.read_text("utf-8") for page in site.rglob("*.html")]
    assert len(pages) > 80 and not [page for page in pages if "<!-- commands" in page or "::: ferry" in page]
    loaded = {found for page in pages for found in re.findall(r'(?:src|rel="stylesheet" href)="(https?:[^"]+)', page)}
    assert not loaded


def test_every_command_is_on_its_page_with_its_help(site: Path) -> None:
    page = " ".join(text_of(site / "reference" / "commands.html").split())
    assert len(commands.commands()) > 25
    for name, command in commands.commands().items():
        assert f"ferry {name}" in page and " ".join(command.help.replace("`", "").split()) in page, name
        for option in command.params:
            assert commands.called(option) in page, f"{name} {option.opts}"


def test_every_public_name_is_on_its_page(site: Path) -> None:
    listed = api.NAMED.findall((DOCS / "reference" / "api.md").read_text("utf-8"))
    assert sorted(listed) == sorted(api.names()), "a line `::: ferry.NAME` for each name"
    page = (site / "reference" / "api.html").read_text("utf-8")
    assert set(ferry.__all__) <= set(listed) and not [name for name in listed if f'id="{name}"' not in page]
    assert 'id="KeyedStream.aggregate"' in page


def test_a_docstring_becomes_markdown() -> None:
    made = api.markdown(
        "Head.\n\nParameters:\n    a, b: two\n        lines.\nRaises: Nothing.\nExample:\n    >>> 1\n    1"
    )
    assert made == "Head.\n\n**Parameters**\n\n- `a, b`: two lines.\n\n**Raises:** Nothing.\n\n```pycon\n>>> 1\n1\n```"


def test_every_metric_of_alerts_and_dashboards_is_on_its_page() -> None:
    files = [ROOT / "charts/ferry/alerts.yaml", *(ROOT / "charts/ferry/dashboards").glob("*.json")]
    asked = {n for file in files for n in re.findall(r"\bferry_[a-z_]+", file.read_text("utf-8"))}
    known = {f"{name}{end}" for name in metrics.metrics() for end in ("", "_total", "_bucket", "_sum", "_count")}
    assert "ferry_epoch_duration_seconds" in known and sorted(asked - known) == []


def test_every_error_text_has_its_entry(site: Path) -> None:
    found, page = errors.entries(), (site / "reference" / "errors.html").read_text("utf-8")
    assert len(found) > 700
    rows = re.findall(r'<tr id="(e-[^"]*)"><td><code>(.*?)</code>', page)
    assert not {entry.pattern for entry in found} - {html.unescape(text) for _, text in rows}
    anchors = [anchor for anchor, _ in rows]
    assert len(anchors) == len(set(anchors)) == len(found)


@pytest.mark.parametrize(
    "text",
    [
        "{path}: unknown field{suggest}",
        "{path}: {value} is not allowed; must be {allowed}",
        "spec.workers: {instances} instances share {virtual_nodes} virtual nodes; {instances} of them will lead nothing",
        "a file source needs a directory; looked for in {getcwd}",
        "the first malformed record: {reason}; see {dead_letters}",
    ],
)
def test_texts_that_a_function_returns_have_their_entry(text: str) -> None:
    assert text in {entry.pattern for entry in errors.entries()}


def test_explained_texts_are_those_of_the_product() -> None:
    """A text that changed is changed on the page as well; ` ...` at its end leaves the rest out."""
    table = ERRORS.partition("## The most likely texts")[2].partition("\n## ")[0]
    explained = re.findall(r"^\| `(.*?)` \|", table, re.MULTILINE)
    patterns = [entry.pattern for entry in errors.entries()]
    assert len(explained) >= 30
    stale = [t for t in explained if not any(p == t or (t.endswith(" ...") and p.startswith(t[:-4])) for p in patterns)]
    assert not stale


def test_every_reason_of_degraded_is_explained() -> None:
    table = ERRORS.partition("## Reasons of Degraded")[2].partition("\n## ")[0]
    explained = set(re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE))
    assert sorted(errors.reasons() - explained) == []
    constants = {
        n.value for tree in errors.parsed(ROOT).values() for n in ast.walk(tree) if isinstance(n, ast.Constant)
    }
    assert sorted(explained - constants) == [], "no part of the product has this reason"


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        (
            "raise SpecRefused(f\"no column {name!r}; there are {', '.join(names)}\")",
            "no column {name}; there are {names}",
        ),
        ('LOST = "records lost: "\nraise Fault(f"{LOST}{self.x._path}")', "records lost: {path}"),
        ('def f():\n    why = f"half of {len(a)}"\n    raise Fault(why)', "half of {n}"),
        ('raise Fault("is gone" if x else "is away")', "is away"),
        ('add("InstancesApart", f"{a} cannot reach {b}")', "{a} cannot reach {b}"),
        ('Notice("Normal", "Paused", "by an annotation")', "by an annotation"),
        ('def f():\n    lines = []\n    lines.append(f"{a} is gone")\n    raise Fault(lines)', "{a} is gone"),
    ],
)
def test_a_text_is_found_as_a_pattern(code: str, expected: str) -> None:
    found = [text for _, text in errors.texts(ast.parse(code), {"SpecRefused", "Fault"}, {})]
    assert expected in found


def test_errors_are_those_of_the_product() -> None:
    known = errors.error_classes([*errors.parsed(ROOT).values()])
    assert {"SpecRefused", "JobRefused", "Unreachable", "ApiError"} <= known and not {"Bug", "FerryError"} & known


def test_a_link_between_files_becomes_a_link_between_pages() -> None:
    text = "[a](../runtime/ARCHITECTURE.md#x) [b](design.md) [`c`](../Makefile) [d](../CONTRIBUTING.md)\n```text\n[e](../f)\n```"
    made = hooks.relinked(text, "docs/guide.md", "guide.md")
    assert made == (
        "[a](architecture/runtime.md#x) [b](design.md) `c` (`Makefile`) [d](contributing.md)\n```text\n[e](../f)\n```"
    )


PAGES = [ROOT / "README.md", *DOCS.rglob("*.md"), *(ROOT / source for source in hooks.OUTSIDE)]


def commands_in(page: Path) -> list[list[str]]:
    """The commands of a page, as words."""
    lines = [line for b in blocks(page) if b.language == "sh" for line in b.text.replace("\\\n", " ").splitlines()]
    return [words for line in lines if (words := shlex.split(line.partition("  #")[0], comments=True))]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_commands_of_a_page_exist(page: Path) -> None:
    """Also those that no test runs: the program knows the command and its options, a target or an extra is there."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    makefile = (ROOT / "Makefile").read_text("utf-8")
    for words in commands_in(page):
        program = words[0].removeprefix(".venv/bin/")
        if program in ("ferry", "kubectl") and words[1] != "-n" and (program == "ferry" or words[1] == "streamjob"):
            parse(words[1:] if program == "ferry" else words[2:])
        elif program == "make":
            targets = [word for word in words[1:] if "=" not in word]
            assert all(re.search(rf"^(?:[a-z -]*\s)?{t}\b[a-z -]*:", makefile, re.MULTILINE) for t in targets), words
        elif program == "python" or "python" in Path(program).name:
            files = [word for word in words if word.endswith(".py") and "/" in word]
            assert all((ROOT / file).exists() for file in files), words
    for extra in set(re.findall(r"ferry-stream\[([a-z]+)\]", page.read_text("utf-8"))):
        assert extra in project["optional-dependencies"], extra


def parse(arguments: list[str]) -> None:
    """Have the command line's parser read it; it complains of what it does not know."""
    group = commands.group()
    context = group.make_context("ferry", hoist(join_at(arguments)))
    name, command, rest = group.resolve_command(context, [*context._protected_args, *context.args])
    command.make_context(name, rest, parent=context)


def test_a_command_that_does_not_exist_is_found() -> None:
    with pytest.raises(Exception, match="No such option"):
        parse(["scale", "sales", "--wokers", "3"])
    with pytest.raises(Exception, match="No such command"):
        parse(["rescale", "sales"])


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_blocks_of_code_are_run_or_marked_as_text(page: Path) -> None:
    """Python and job files are run by the tests of documents; `text` is what a program prints, or a drawing."""
    run = page in DOCUMENTS or page.parent == HOW_TO
    languages = {"python", "yaml", "sh", "text"} if run else {"sh", "text"}
    assert {block.language for block in blocks(page)} <= languages
