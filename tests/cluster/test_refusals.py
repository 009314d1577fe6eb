"""Changes of a running job's program that are refused: what the user reads, and that the job goes on as if nothing was asked.

`python -m tests.cluster.refusals` writes the table of `docs/reference/refused-deploys.md` anew.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cluster import deploys, refusals, runner
from tests.cluster.deploying import in_force

pytestmark = [pytest.mark.cluster, pytest.mark.long, pytest.mark.timeout(3600)]

EPOCHS = 100
"""After each refusal."""


def test_a_refused_change_is_told_as_documented_and_changes_nothing(tmp_path: Path) -> None:
    answers: dict[str, tuple[int, str]] = {}

    def asks(running: runner.Running) -> None:
        running.await_epoch(5)
        for title in refusals.titles():
            answers[title] = refusals.answer(running, tmp_path, title)
            last = max(r["epoch"] for r in running.records() if r["kind"] == "epoch")
            running.await_epoch(last + EPOCHS, 300)
        runner.stop(running)

    result = runner.run(deploys.job(tmp_path, more=refusals.MORE), tmp_path, sets=refusals.SETS, meanwhile=asks)
    assert result.code == 0 and deploys.wrong(result.output, {0: 1}) == [], result.story()
    assert in_force(result.records) == {} and len(result.kinds("ready")) == 1, result.story()
    told = refusals.told()
    assert len(told) >= 30 and list(told) == refusals.titles()
    differ = {title: (told[title], text) for title, (_, text) in answers.items() if told[title] != text}
    assert not differ, "\n\n".join(f"{title}, as the page says:\n{a}\nnow:\n{b}" for title, (a, b) in differ.items())
    codes = {title: code for title, (code, _) in answers.items() if code != refusals.REFUSED}
    assert not codes
