"""What is not set means one machine; what cannot be meant is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from ferry import environment
from ferry.contract.errors import SpecRefused


def test_nothing_set_is_one_machine() -> None:
    one = environment.read({})
    assert (one.host, one.address, one.has_executors, one.worker) == (None, "127.0.0.1", False, None)
    assert (one.channel_port(3), one.flight_port(3), one.control_port) == (0, 0, 0)


def test_a_pod_says_where_it_is() -> None:
    given = {
        "FERRY_HOST": "10.1.2.3", "FERRY_PORTS": "fixed", "FERRY_CONTROL_PORT": "7070",
        "FERRY_SPARK": "standalone", "FERRY_WORKER": "0", "FERRY_INSTANCES_FILE": "/etc/ferry/pod/instances",
        "FERRY_PLACE": "a pod",
    }  # fmt: skip
    one = environment.read(given)
    assert (one.host, one.address, one.has_executors, one.worker) == ("10.1.2.3", "10.1.2.3", True, 0)
    assert (one.channel_port(3), one.flight_port(3), one.control_port) == (7103, 7203, 7070)
    assert (one.metrics_port, environment.read({}).metrics_port) == (7071, 0)
    assert environment.read({**given, "FERRY_METRICS_PORT": "17123"}).metrics_port == 17123
    assert one.place == "a pod" and environment.read({}).place is None
    assert one.instances_file == Path("/etc/ferry/pod/instances")


def test_a_driver_is_told_where_its_journal_is() -> None:
    given = {"FERRY_JOURNAL": "jobs/a-1", "FERRY_BEGUN": "yes", "KUBERNETES_SERVICE_HOST": "fd00::1"}
    one = environment.read(given)
    assert (one.journal, one.api_server, one.begun) == (("jobs", "a-1"), "https://[fd00::1]:443", True)
    assert environment.read({**given, "KUBERNETES_SERVICE_PORT": "6443"}).api_server == "https://[fd00::1]:6443"
    elsewhere = environment.read({"KUBERNETES_SERVICE_HOST": "h", "KUBERNETES_SERVICE_PORT": "tcp://h"})
    assert (elsewhere.journal, elsewhere.api_server, elsewhere.begun) == (None, "", False)
    for wrong in ({"FERRY_JOURNAL": "jobs/a-1"}, {**given, "FERRY_JOURNAL": "jobs"}):
        with pytest.raises(SpecRefused, match=r"FERRY_JOURNAL.*NAMESPACE/NAME"):
            environment.read(wrong)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("FERRY_SPARK", "yarn"),
        ("FERRY_PORTS", "7100"),
        ("FERRY_CONTROL_PORT", "seven"),
        ("FERRY_METRICS_PORT", "65536"),
    ],
)
def test_nonsense_is_refused_by_name(name: str, value: str) -> None:
    with pytest.raises(SpecRefused, match=f"{name}.*{value}"):
        environment.read({name: value})
