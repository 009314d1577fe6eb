"""The last words of an instance."""

from __future__ import annotations

from typing import Any

import pytest

from ferry.contract import messages as m
from ferry.contract.errors import Exhausted
from ferry.contract.names import InstanceId
from ferry.protocol import instance as core
from ferry.sidecar import node

ME = InstanceId("0.0")


@pytest.mark.parametrize(
    "error", [Exhausted("the disk is full"), OSError(28, "No space left on device"), KeyError("x")]
)
def test_whatever_ends_an_instance_is_told_to_the_driver(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    sent: list[Any] = []
    one = node.Node.__new__(node.Node)
    one.me = ME

    def loop() -> None:
        raise error

    monkeypatch.setattr(node, "LAST_WORDS_SECONDS", 0.0)
    monkeypatch.setattr(one, "_loop", loop)
    monkeypatch.setattr(one, "_send", lambda send, body: sent.append(send))
    assert one._live() == 3
    assert sent == [core.Send(core.DRIVER, m.Failed(ME, f"{type(error).__name__}: {error}"))]
