"""The page that changes a running job step by step, as a reader follows it: what the commands print, and the sums."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
import time
from collections import defaultdict
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.cluster import deploys
from tests.documents import DOCS, ROOT, blocks

pytestmark = [pytest.mark.cluster, pytest.mark.core, pytest.mark.timeout(400)]

PAGE = DOCS / "howto" / "change-a-running-job.md"
STAY = ("python shops.py", "ferry run sales.yaml --output out")
"""Commands of terminals of their own."""
STAYS_SECONDS = 8.0
"""So long that each program has a window of its own."""
LEAST = {1: 0, 2: 100, 3: 200, 4: 200, 5: 200, 6: 200, 7: 200}
"""The smallest sale of each program, in the order of the page."""


def plain(text: str) -> str:
    return " ".join(text.split())


def test_the_page_prints_what_it_shows_and_each_program_has_its_sums(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    monkeypatch.setenv("PYTHONPATH", f"{ROOT / 'runtime'}:{ROOT / 'operator'}")
    monkeypatch.setenv("FERRY_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.chdir(tmp_path)
    shown, begins = "", [(0.0, 0.0)]
    with ExitStack() as background:
        for block in blocks(PAGE):
            if named := re.match(r"# (\S+\.\w+)\n", block.text):
                (tmp_path / named[1]).write_text(block.text)
            elif block.language == "text":
                for line in block.text.splitlines():
                    assert re.search(re.escape(plain(line)).replace(r"\.\.\.", r"\S+"), shown), (line, shown)
            for line in block.text.splitlines() if block.language == "sh" else ():
                if line in STAY:
                    process = subprocess.Popen(shlex.split(line))
                    wait_for_the_job() if "ferry run" in line else None
                    background.callback(process.wait, 60)
                    background.callback(process.terminate)
                    continue
                if line.split()[1] in ("deploy", "rollback", "stop"):
                    wait_for_the_job()
                    time.sleep(STAYS_SECONDS)
                asked = time.time() * 1000
                done = subprocess.run(shlex.split(line), capture_output=True, text=True, timeout=120)
                shown = plain(done.stdout + done.stderr)
                assert done.returncode == (2 if "wrong.py" in line or "strict.py" in line else 0), shown
                if "in force" in shown and "versions" not in line:
                    begins.append((asked, time.time() * 1000))
    right(tmp_path, begins)


def wait_for_the_job() -> None:
    deadline = time.monotonic() + 90
    while "epoch" not in subprocess.run(["ferry", "status", "sales"], capture_output=True, text=True).stdout:
        assert time.monotonic() < deadline, "the job does not begin"
        time.sleep(0.5)


def right(folder: Path, begins: list[tuple[float, float]]) -> None:
    """`begins`: when each program was asked for, and when it was in force, in milliseconds since 1970."""
    sums: dict[tuple[str, int], list[int]] = defaultdict(list)
    for file in sorted((folder / "in").glob("*.json")):
        for sale in map(json.loads, file.read_text().splitlines()):
            sums[sale["shop"], sale["ts"] // 2000 * 2000].append(sale["cents"])
    own = dict.fromkeys(LEAST, 0)
    for table in deploys.read(folder / "out" / "sums").values():
        for row in table.to_pylist():
            start, cents = row["window_start"], sums.pop((row["shop"], row["window_start"]))
            low, high = (sum(one for one in cents if one >= least) for least in (200, 0))
            assert low <= row["cents"] <= high, row
            ends = [*(asked for asked, _ in begins[1:]), 1e15]
            for number, ((_, begin), end) in enumerate(zip(begins, ends, strict=True), 1):
                # Files are read some time after their sales.
                if begin < start and start + 2000 + 2500 < end:
                    assert row["cents"] == sum(one for one in cents if one >= LEAST[number]), (number, row)
                    assert number < 4 or row["largest"] == max(cents), (number, row)
                    own[number] += 1
    assert all(own.values()), f"{own}"
