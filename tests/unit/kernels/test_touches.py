"""Kernels load each row as often as docs/profile.md says: counted, because a clock would not notice one more visit."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]
LINE = re.compile(r"^\| ([^|]+) \| [^|]+ \| ([\d.]+) \|$", re.MULTILINE)


def test_each_row_is_visited_as_often_as_documented() -> None:
    section = (ROOT / "docs" / "profile.md").read_text().partition("## How often kernels touch a row")[2]
    most = {step: float(visits) for step, visits in LINE.findall(section)}
    command = [sys.executable, "-m", "tests.unit.kernels.touches"]
    done = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True, timeout=100)
    counted = json.loads(done.stdout)
    assert most.keys() == counted.keys()
    for step, visits in counted.items():
        assert most[step] - 0.5 < visits <= most[step], f"{step}: {visits}"
