"""The tests with real verbs, in virtual machines: this file boots them. A guest without a device fails; nothing is skipped.

Guests that are alone run two at a time, for each is emulated by one processor; pairs, which measure time, one after the other.
"""

from __future__ import annotations

import os
import re
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

GUEST = Path(__file__).with_name("guest")
PYTEST = "python3 -m pytest -q -p no:cacheprovider -rfE --show-capture=no --no-header --durations=5"
CONTRACT = "/ferry/tests/unit/channel/test_contract.py"
INSIDE = "/ferry/tests/rdma/inside"
NODE = f"python3 {INSIDE}/node.py"

MESSAGES = f"FERRY_RDMA_MESSAGES={os.environ.get('FERRY_RDMA_MESSAGES', '160000')}"
"""Each way of notifying carries so many, at one time; `make test-long` has a million in all."""

ALONE = {
    "a long time, with footers": (f"{MESSAGES} {PYTEST} {INSIDE}/test_endurance.py -k 'footer or requests'", 4),
    "a long time, with immediate data": (f"{MESSAGES} {PYTEST} {INSIDE}/test_endurance.py -k imm", 3),
    "the contract of a channel, with footers": (f"FERRY_CHANNEL_CARRIERS=rdma-footer {PYTEST} {CONTRACT}", 44),
    "the contract of a channel, with immediate data": (f"FERRY_CHANNEL_CARRIERS=rdma-imm {PYTEST} {CONTRACT}", 44),
    "channels over real verbs, and a hostile peer": (f"{PYTEST} {INSIDE}/test_channels.py {INSIDE}/test_links.py", 38),
}
"""What runs in a guest of its own, the longest first, and how many tests have to pass there."""


def boot(kind: str, seconds: int, *commands: str) -> str:
    began = time.monotonic()
    done = subprocess.run([GUEST, kind, str(seconds), *commands], capture_output=True, text=True, timeout=seconds + 60)
    text = f"{time.monotonic() - began:.0f} s\n{done.stdout[-20_000:]}{done.stderr[-2000:]}"
    assert done.returncode == 0, f"exit code {done.returncode} after {text}"
    return text


def all_passed(output: str, at_least: int) -> None:
    """Pytest's own last line: nothing was skipped, and there was something."""
    found = re.search(r"(\d+) passed(.*) in ", output)
    assert found and int(found[1]) >= at_least and "skipped" not in found[2], output[-2000:]


@pytest.fixture(scope="module")
def alone(request: pytest.FixtureRequest) -> Iterator[dict[str, Future[str]]]:
    """All that were asked for."""
    calls = (getattr(item, "callspec", None) for item in request.session.items)
    wanted = {call.params["what"] for call in calls if call is not None and "what" in call.params}
    with ThreadPoolExecutor(2) as pool:
        yield {what: pool.submit(boot, "run", 1300, command) for what, (command, _) in ALONE.items() if what in wanted}
        pool.shutdown(cancel_futures=True)


@pytest.mark.timeout(1500)
@pytest.mark.parametrize("what", ALONE)
def test_in_a_guest(what: str, alone: dict[str, Future[str]]) -> None:
    output = alone[what].result()
    print(output)
    all_passed(output, ALONE[what][1])


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "variables, wire",
    [("FERRY_NOTIFY=footer", "loss 1%"), ("FERRY_NOTIFY=imm FERRY_FALLBACK=1", "loss 1% delay 2ms reorder 25% 50%")],
    ids=["a link ends", "a link falls back to TCP"],
)
def test_two_machines(variables: str, wire: str, alone: dict[str, Future[str]]) -> None:
    """What the wire loses and reorders changes nothing; a machine that loses power is noticed."""
    for other in alone.values():
        other.exception()
    netem = f"tc qdisc add dev $FERRY_GUEST_CARD root netem {wire}"
    listen = f"{variables} FERRY_LINGER=100 {NODE} listen"
    output = boot("pair", 150, listen, f"{netem} && {variables} {NODE} send 10.8.0.1")
    print(output)
    seen = {name: int(value) for name, value in re.findall(r"'(\w+)': (\d+)", output)}
    faults = ("completer_retry_err", "duplicate_request", "out_of_seq_request", "rcvd_seq_err")
    assert any(seen.get(name) for name in faults), f"the kernel saw no fault: {seen}"
    assert re.search(r"b: nobody: 10\.8\.0\.77 does not answer.* stood still for 0\.\d+ s at most", output), output
    assert re.search(r"b: noticed 0\.\d+ s after the power cut", output), output
