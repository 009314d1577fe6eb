"""What a person sees of a broken program: the files of `docs/errors`, which `python -m tests.cluster.errors` writes anew."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.cluster import errors

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]


def test_the_cause_is_on_the_screen_as_the_documents_say() -> None:
    """Several run at a time: each is one worker and one core."""
    with ThreadPoolExecutor(errors.AT_ONCE) as pool:
        found = dict(zip(errors.NAMES, pool.map(errors.shown_now, errors.NAMES), strict=True))
    told = {name: (errors.TOLD / f"{name}.txt").read_text().partition("\n\n")[2] for name in errors.NAMES}
    differ = {
        name: (wanted, errors.alike(shown))
        for name, (shown, _) in found.items()
        if (wanted := errors.alike(told[name].partition("\n")[2])) != errors.alike(shown)
    }
    assert not differ, "\n\n".join(
        f"{name}, as docs/errors says:\n{one}\nnow:\n{other}" for name, (one, other) in differ.items()
    )
