"""The recording on the first page: the same commands today, and still no row differs."""

from __future__ import annotations

import html

import pytest

from tests.cluster import recording

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]


def test_the_recorded_commands_do_what_the_recording_shows() -> None:
    kept, now = recording.PICTURE.read_text(), recording.shown_now()
    *_, stormy, compared = now.values()
    assert all(html.escape(line) in kept for command in recording.COMMANDS[1:] for line in command.splitlines())
    assert "kill-worker=1: next epoch after" in stormy
    assert html.escape(compared.strip()) in kept and compared.strip().endswith("0 are different")
