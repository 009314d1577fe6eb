"""The tests with real verbs, in virtual machines: this file boots them. A guest without a device fails; nothing is skipped."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

GUEST = Path(__file__).with_name("guest")
PYTEST = "python3 -m pytest -q -p no:cacheprovider -rA --show-capture=no --no-header"


def boot(kind: str, seconds: int, *commands: str) -> str:
    done = subprocess.run([GUEST, kind, str(seconds), *commands], capture_output=True, text=True, timeout=seconds + 60)
    print(done.stdout[-20_000:], done.stderr[-2000:])
    assert done.returncode == 0, f"exit code {done.returncode}: {done.stdout[-8000:]}{done.stderr[-2000:]}"
    return done.stdout


def all_passed(output: str, at_least: int) -> None:
    """Pytest's own last line: nothing was skipped, and there was something."""
    found = re.search(r"(\d+) passed(.*) in ", output)
    assert found and int(found[1]) >= at_least and "skipped" not in found[2], output[-2000:]


@pytest.mark.timeout(400)
@pytest.mark.parametrize("notify", ["footer", "imm"])
def test_the_contract_of_a_channel(notify):
    environment = f"FERRY_CHANNEL_CARRIERS=rdma-{notify}"
    all_passed(boot("run", 300, f"{environment} {PYTEST} /ferry/tests/unit/channel/test_contract.py"), 44)


@pytest.mark.timeout(400)
def test_what_a_hostile_peer_cannot_do():
    all_passed(boot("run", 300, f"{PYTEST} /ferry/tests/rdma/inside/test_links.py"), 18)


@pytest.mark.timeout(400)
def test_channels_over_real_verbs():
    all_passed(boot("run", 300, f"{PYTEST} /ferry/tests/rdma/inside/test_channels.py"), 20)


@pytest.mark.timeout(600)
def test_a_long_time():
    all_passed(boot("run", 400, f"{PYTEST} /ferry/tests/rdma/inside/test_endurance.py"), 7)


NODE = "python3 /ferry/tests/rdma/inside/node.py"


@pytest.mark.timeout(400)
@pytest.mark.parametrize("notify", ["footer", "imm"])
def test_a_machine_that_loses_power_is_noticed(notify):
    output = boot(
        "pair",
        200,
        f"FERRY_NOTIFY={notify} FERRY_LINGER=100 {NODE} listen",
        f"FERRY_NOTIFY={notify} {NODE} send 10.8.0.1 dark",
    )
    assert re.search(r"b: noticed 0\.\d+ s after the power cut", output), output


@pytest.mark.timeout(400)
def test_loss_and_reordering_change_nothing():
    netem = "tc qdisc add dev $FERRY_GUEST_CARD root netem loss 1% delay 2ms reorder 25% 50%"
    output = boot("pair", 200, f"{NODE} listen", f"{netem} && {NODE} send 10.8.0.1 steady")
    seen = {name: int(value) for name, value in re.findall(r"'(\w+)': (\d+)", output)}
    faults = ("completer_retry_err", "duplicate_request", "out_of_seq_request", "rcvd_seq_err")
    assert any(seen.get(name) for name in faults), f"the kernel saw no fault: {seen}"
