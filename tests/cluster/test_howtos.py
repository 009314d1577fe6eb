"""The pages of `docs/howto`, as a reader follows them, while a worker and the driver are killed together."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from urllib.parse import quote

import pytest

from tests.cluster import runner
from tests.documents import ROOT, blocks
from tests.kafka import KafkaBroker
from tests.postgres import PASSWORD, PostgresServer

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(400)]

HOW_TO = ROOT / "docs" / "howto"
PORT = "8321"
"""of servers on pages; a free one takes its place"""

TOGETHER = ["epoch=3:sink kill-worker=1", "epoch=3:sink kill-driver"]


def pages() -> Iterator[object]:
    """Those that need a server share one."""
    for path in sorted(HOW_TO.glob("*.md")):
        text = path.read_text()
        group = "postgres" if "DATABASE_URL" in text else "kafka" if 'environ["KAFKA"]' in text else path.stem
        if path.name not in ("README.md", "change-a-running-job.md"):  # see test_change_page
            yield pytest.param(path, marks=[pytest.mark.turns, pytest.mark.xdist_group(group)], id=path.stem)


@pytest.fixture(scope="module")
def postgres() -> Iterator[PostgresServer]:
    one = PostgresServer()
    yield one
    one.close()


@pytest.fixture
def environment(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Programs of this clone, and the servers that the page names."""
    text = request.getfixturevalue("page").read_text()
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    monkeypatch.setenv("PYTHONPATH", f"{ROOT / 'runtime'}:{ROOT / 'operator'}")
    monkeypatch.chdir(tmp_path)
    with ExitStack() as servers:
        if "DATABASE_URL" in text:
            server: PostgresServer = request.getfixturevalue("postgres")
            monkeypatch.setenv("DATABASE_URL", server.dsn.replace("${PG_PASSWORD}", quote(PASSWORD, safe="")))
        if 'environ["KAFKA"]' in text:
            broker = KafkaBroker(tmp_path / "kafka", wired=False)
            servers.callback(broker.kill)
            monkeypatch.setenv("KAFKA", broker.servers)
        yield


@pytest.mark.usefixtures("environment")
@pytest.mark.parametrize("page", [*pages()])
def test_a_page_is_exact_when_a_worker_and_the_driver_die_together(page: Path, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as one:
        port = str(one.getsockname()[1])
    (commands,) = [block.text.splitlines() for block in blocks(page) if block.language == "sh"]
    for block in blocks(page):
        if named := re.match(r"# (\S+\.\w+)\n", block.text):
            (tmp_path / named[1]).write_text(block.text.replace(PORT, port))
    with ExitStack() as servers:
        for line in commands:
            if run := re.fullmatch(r"ferry run (\S+\.yaml) --output out", line):
                result = runner.run(tmp_path / run[1], tmp_path, at=TOGETHER)
                assert result.code == 0 and not result.left, result.story()
                acts = [record["text"] for record in result.kinds("action")]
                assert all(any(act.startswith(kill) for act in acts) for kill in ("kill-worker", "kill-driver")), acts
                continue
            background = line.endswith(" &")
            process = subprocess.Popen(line.removesuffix(" &").replace(PORT, port).split())
            if background:
                servers.callback(process.wait)
                servers.callback(process.kill)
            else:
                assert process.wait(120) == 0, line
