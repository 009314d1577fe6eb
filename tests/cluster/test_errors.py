"""What a person sees: of broken programs (`docs/errors`), and in the first minutes (`docs/first-minutes.txt`).

`python -m tests.cluster.errors` and `python -m tests.cluster.first_minutes` write the files anew.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.cluster import errors, first_minutes, terminal

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]


def test_the_cause_is_on_the_screen_as_the_documents_say() -> None:
    """Several run at a time: each is one worker and one core."""
    with ThreadPoolExecutor(errors.AT_ONCE) as pool:
        found = dict(zip(errors.NAMES, pool.map(errors.shown_now, errors.NAMES), strict=True))
    told = {name: (errors.TOLD / f"{name}.txt").read_text().partition("\n\n")[2] for name in errors.NAMES}
    differ = {
        name: (wanted, terminal.alike(shown))
        for name, (shown, _) in found.items()
        if (wanted := terminal.alike(told[name].partition("\n")[2])) != terminal.alike(shown)
    }
    assert not differ, "\n\n".join(
        f"{name}, as docs/errors says:\n{one}\nnow:\n{other}" for name, (one, other) in differ.items()
    )


def test_the_first_minutes_are_as_the_documents_say() -> None:
    now, told = first_minutes.shown_now(), first_minutes.told()
    assert list(now) == list(told)
    for command, shown in now.items():
        assert terminal.alike(shown) == terminal.alike(told[command]), command
