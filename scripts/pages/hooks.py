"""Hooks of MkDocs (`mkdocs.yml`): insert the parts generated from the product, and pages outside of `docs/`.

A page has a marker such as `<!-- commands -->` where a generated part stands. Documents of other folders (CONTRIBUTING.md,
the ARCHITECTURE of a package) are pages of the site, too; a link to any other file of the repository is its path as code.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from mkdocs.structure.files import File

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"

OUTSIDE = {
    "CHANGELOG.md": "changelog.md",
    "CODE_OF_CONDUCT.md": "code-of-conduct.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security-policy.md",
    "bench/PAPERS.md": "bench/papers.md",
    "bench/README.md": "bench/index.md",
    "charts/ferry/README.md": "operating/chart.md",
    "operator/ARCHITECTURE.md": "architecture/operator.md",
    "runtime/ARCHITECTURE.md": "architecture/runtime.md",
    "tests/kube/lab/README.md": "contributing/kube-lab.md",
    "tests/rdma/README.md": "contributing/rdma-lab.md",
}
"""Documents of other folders, and where they are on the site."""

LINK = re.compile(r"(?P<text>\[(?:[^\]\\]|\\.)*\])\((?P<to>[^)\s#]+)(?P<anchor>#[^)\s]*)?\)")


def on_config(config: Any) -> Any:
    """Make the packages of this clone importable, and list the decision records in the navigation."""
    sys.path[:0] = [str(ROOT), str(ROOT / "runtime"), str(ROOT / "operator")]
    records = [f"decisions/{path.name}" for path in sorted((DOCS / "decisions").glob("*.md"))]
    for section in config.nav:
        for entry in next(iter(section.values())):
            if isinstance(entry, dict) and "Decisions" in entry:
                entry["Decisions"] = records
    return config


def on_files(files: Any, config: Any) -> Any:
    """Bring the documents of other folders in."""
    for source, page in OUTSIDE.items():
        files.append(File.generated(config, page, content=(ROOT / source).read_text("utf-8")))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Insert the generated parts of a page, and turn its links into links of the site."""
    where = {site: source for source, site in OUTSIDE.items()}.get(page.file.src_uri, f"docs/{page.file.src_uri}")
    return relinked(generated(markdown), where, page.file.src_uri)


def generated(markdown: str) -> str:
    """The page with generated parts in place of its markers."""
    from scripts.pages import api, commands, errors, metrics

    if "::: ferry." in markdown:
        markdown = api.page(markdown)
    parts: dict[str, Callable[[], str]] = {
        "commands": commands.page,
        "error texts": lambda: errors.page(errors.entries()),
        "metrics": metrics.page,
        "alerts": metrics.alerts,
        "first minutes": lambda: f"```text\n{(DOCS / 'first-minutes.txt').read_text('utf-8')}```",
    }
    for name, make in parts.items():
        if (marker := f"<!-- {name} -->") in markdown:
            markdown = markdown.replace(marker, make())
    return markdown


def relinked(markdown: str, source: str, page: str) -> str:
    """Links between files of the repository as links between pages. `source`, `page`: where it is in each of them."""

    def link(found: re.Match[str]) -> str:
        if re.match(r"[a-z]+:", found["to"]):
            return found[0]
        target = ((ROOT / source).parent / unquote(found["to"])).resolve()
        if not target.is_relative_to(ROOT) or not target.exists():
            return found[0]
        inside = target.relative_to(ROOT).as_posix()
        is_page = inside.startswith("docs/") and target.is_file()
        on_site = OUTSIDE.get(inside, inside.removeprefix("docs/") if is_page else "")
        if on_site:
            up = "../" * page.count("/")
            return f"{found['text']}({up}{on_site}{found['anchor'] or ''})"
        label = found["text"][1:-1]
        return label if label.strip("`") in (inside, found["to"]) else f"{label} (`{inside}`)"

    fenced = re.split(r"(^```.*?^```$)", markdown, flags=re.DOTALL | re.MULTILINE)
    return "".join(part if part.startswith("```") else LINK.sub(link, part) for part in fenced)
