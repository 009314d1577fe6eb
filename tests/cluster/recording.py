"""Records what `docs/scale-and-kill.svg` shows: a job is scaled and loses a worker, and its rows are those of a calm run.

python -m tests.cluster.recording         writes docs/scale-and-kill.svg anew
"""

from __future__ import annotations

import html
import os
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.cluster import terminal

PICTURE = terminal.ROOT / "docs" / "scale-and-kill.svg"

JOB = "ferry run nbq5.yaml --events 2000000 --set epoch.maxRows=20000"

COMMANDS = (
    f"{JOB} --output calm",
    f'{JOB} --output stormy \\\n    --at "epoch=20 workers=4" --at "epoch=70:commit kill-worker=1"',
    "python compare.py calm stormy",
)

COMPARE = """import sys, duckdb
one, other = (f"(SELECT * EXCLUDE (epoch) FROM '{name}/*/*/*.parquet')" for name in sys.argv[1:])
different = duckdb.sql(f"({one} EXCEPT ALL {other}) UNION ALL ({other} EXCEPT ALL {one})")
print(f"{len(duckdb.sql(one)):,} rows, {len(different):,} are different")
sys.exit(len(different))
"""

SECONDS = 200.0
"""A command that has not ended by then is interrupted."""


def shown_now() -> dict[str, str]:
    """What each command shows today."""
    with TemporaryDirectory(prefix="f-") as name:
        folder = Path(name) / "jobs"
        folder.mkdir()
        (folder / "compare.py").write_text(COMPARE)
        (folder / "nbq5.yaml").write_text((terminal.ROOT / "examples" / "nbq5.yaml").read_text())
        paths = [str(terminal.ROOT / part) for part in ("runtime", "operator", "bench/workloads")]
        more = {
            "TERM": "xterm",
            "FERRY_HOME": f"{name}/home",
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "PYTHONPATH": ":".join(paths),
        }
        return {command: _shown(command, folder, more) for command in COMMANDS}


def _shown(command: str, folder: Path, more: dict[str, str]) -> str:
    chunks, code = terminal.watched(["bash", "-c", command], folder, more, SECONDS)
    shown = terminal.screen(chunks)
    assert code == 0, shown
    return shown.replace(f"{folder}/", "").replace(f"{folder}", "")


def picture(shown: dict[str, str]) -> str:
    """The second and the third command as an SVG of text."""
    lines = [""]
    for command in COMMANDS[1:]:
        lines += [*f"$ {command}".splitlines(), *shown[command].rstrip().splitlines(), ""]
    rows = [
        f'<text x="16" y="{20 * n + 16}" fill="{"#80cbc4" if line.startswith(("$", "    --at")) else "#eceff1"}" '
        f'xml:space="preserve">{html.escape(line)}</text>'
        for n, line in enumerate(lines)
        if line
    ]
    size = f'width="740" height="{20 * len(lines) + 8}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="monospace" font-size="14">'
    return "\n".join([head, f'<rect {size} rx="8" fill="#263238"/>', *rows, "</svg>\n"])


if __name__ == "__main__":
    PICTURE.write_text(picture(shown_now()))
