"""A real job whose sidecars run on machines of their own, with real verbs between them: state moves, and everything breaks.

Redis, the driver and Spark's tasks run on this machine, one sidecar in each guest. What the job writes has to be what the
oracle expects, and the kernel's own counters have to show that the faults happened and that the data went over RDMA.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, ClassVar

import pytest

from ferry.contract.settings import RunSettings, TransportSettings
from tests.cluster import runner
from tests.cluster.hosts import Hosts, await_that
from tests.rdma.machines import HOST, Machine, Network, grown

EVENTS = 600_000
ARGS = {"seed": 43, "group": 1000, "delay_prob": 0.05, "keys": "zipf", "domain": 20_000}
VNODES = 16
LEND = 512 << 10
AUTO = TransportSettings(mode="auto", expected=True, lend_bytes=LEND)
INSIST = TransportSettings(mode="rdma", expected=True, lend_bytes=LEND)
METRICS = "cat /tmp/job/workers/{0}/0/metrics.json"
COMMAND = "exec python3 /ferry/tests/rdma/inside/machine.py"
KILL_SIDECAR = "kill -9 -- -$(cat /tmp/sidecar.pid)"
NETEM = "tc qdisc add dev eth0 root netem loss 1% delay 2ms reorder 25% 50%"
LOST = ("completer_retry_err", "duplicate_request", "rcvd_seq_err", "out_of_seq_request")


def settings(base: Path) -> RunSettings:
    return RunSettings(
        job="nbq5", run="nbq5-1", directory="", secret="", redis="", pipeline_module="ferry_workloads.jobs.nbq5",
        pipeline_file=None, pipeline_args=ARGS, virtual_nodes=VNODES, replicas=1, workers=2, instances_per_worker=1,
        memory_bytes=16 << 20, epoch_interval_ms=1000, epoch_max_rows=3_000, cores=1, events=EVENTS, timeout_ms=6000,
        return_deadline_ms=120_000, output=str(base / "out"), transport=AUTO,
        spark={"spark.driver.extraJavaOptions": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"},
    )  # fmt: skip


class Job(Hosts):
    """Sidecars on machines; the rest of the job here, where tasks are threads of the driver."""

    redis_address = HOST
    driver_variables: ClassVar[dict[str, str]] = {"SPARK_LOCAL_IP": "127.0.0.1"}

    def __init__(self, base: Path) -> None:
        super().__init__(base, settings(base))
        self.machines: dict[int, Machine] = {}
        self._began = time.monotonic()
        self._orders = 0

    def driver_address(self, number: int) -> str:
        return HOST

    def start_machine(self, worker: int, number: int, transport: TransportSettings = AUTO) -> Machine:
        """Boot a machine with the sidecar of a worker."""
        machine = self.machines[worker] = Machine(number, self.base / f"machine-{number}")
        machine.directory.mkdir()
        run = replace(self.settings, transport=transport)
        (machine.directory / "run.json").write_text(json.dumps(asdict(run)))
        machine.start(f"{COMMAND} {worker}")
        return machine

    def note(self, text: str) -> None:
        """One line of the story, with its time."""
        print(f"{time.monotonic() - self._began:6.1f} s  {text}", flush=True)

    def counters(self) -> dict[int, dict[str, int]]:
        """Of the kernels of all machines."""
        return {worker: machine.counters() for worker, machine in self.machines.items()}

    def noted(self, what: str, before: dict[int, dict[str, int]]) -> dict[str, int]:
        """What the machines counted since, together; it is printed, too."""
        total: dict[str, int] = {}
        for worker, now in self.counters().items():
            more = grown(before.get(worker, {}), now)
            self.note(f"{what}: worker {worker} counted {more}")
            for name, value in more.items():
                total[name] = total.get(name, 0) + value
        return total

    def place(self, *members: str) -> None:
        """Every virtual node on these instances, the first of which leads half of them."""
        self._orders += 1
        turned = [*members[1:], members[0]]
        placements = [list(members) if v % 2 else turned for v in range(VNODES)]
        self.ask("desired", {"number": self._orders, "placements": placements, "token": 7})
        await_that(lambda: self.ask("status")["desired"] == self._orders, "desired placement", 10)
        await_that(lambda: bool(self.ask("status")["settled"]), f"settled groups on {members}", 150)

    def await_links(self, kind: str, seconds: float) -> None:
        """Have all links between sidecars of this kind."""
        await_that(lambda: self.links() == kind, f"links over {kind}", seconds)

    def links(self) -> str:
        """rdma, tcp, mixed, or nothing: both ends of each link are counted."""
        found: dict[str, Any] = self.ask("status")["transport"]
        return "+".join(f"{found[k]} {k}" for k in ("rdma", "tcp") if found[k])

    def metric(self, worker: int, name: str) -> int:
        """A counter of a worker's sidecar, from its metrics file, which is some moments old."""
        return int(json.loads(self.machines[worker].ask(METRICS.format(worker)))[name])

    def lent_bytes(self) -> dict[int, int]:
        """What each sidecar that runs sent from where it lies in its log."""
        return {worker: self.metric(worker, "lent_bytes") for worker in self.machines}

    def state_bytes(self) -> int:
        """Of one copy of the state."""
        return int(sum(size for _, size in self.ask("status")["load"]["vnodes"]))

    def story(self) -> str:
        parts = [machine.story() for machine in self.machines.values()]
        return "\n".join([super().story(), *parts])

    def close(self) -> None:
        for machine in self.machines.values():
            machine.power_off()
        super().close()


BOTH_ENDS = "2 rdma"


def state_moves(job: Job) -> None:
    """To one machine, and back to both."""
    job.place("0.0")
    before, size = job.counters(), job.state_bytes()
    job.place("0.0", "1.0")
    more = job.noted(f"{size} bytes of state moved", before)
    assert size > 0 and more.get("tx_bytes", 0) > size, "the state did not go over the card that is for RDMA alone"
    assert more.get("sent_pkts", 0) > size // 4096
    await_that(lambda: all(job.lent_bytes().values()), "deltas sent from where they are logged", 60)
    job.note(f"sent from lent memory: {job.lent_bytes()}")


def packets_get_lost(job: Job) -> None:
    """1 % loss and reordering in both directions, while epochs run and state moves."""
    before = job.counters()
    for machine in job.machines.values():
        machine.ask(NETEM)
    for _ in range(5):
        job.place("1.0")
        job.place("1.0", "0.0")
        if sum(seen["netem_dropped"] for seen in job.counters().values()) >= 5:
            break
    job.await_epochs(2)
    more = job.noted("1 % loss and reordering", before)
    assert more.get("netem_dropped", 0) >= 5 and any(more.get(name) for name in LOST), f"no fault was seen: {more}"
    for machine in job.machines.values():
        machine.ask("tc qdisc del dev eth0 root")
    job.await_links(BOTH_ENDS, 60)


def the_rdma_card_is_unplugged(job: Job) -> None:
    """For 3 s or more, with the other card left: the link goes on over TCP, and comes back; nobody is lost."""
    before, lost, epoch = job.counters(), len(job.records("lost")), job.epoch()
    job.machines[1].link("rdma", "down")
    seen, began, went = set(), time.monotonic(), 0
    while (passed := time.monotonic() - began) < 3.0 or (passed < 60.0 and not (went and seen - {BOTH_ENDS})):
        seen.add(job.links())
        went = job.epoch() - epoch
        time.sleep(0.05)
    job.machines[1].link("rdma", "up")
    job.note(f"RDMA's card was down for {passed:.1f} s: {went} epochs meanwhile, links were {sorted(seen)}")
    assert went > 0 and seen - {BOTH_ENDS}, "the job stood still, or nobody said that a link is not RDMA any more"
    job.await_links(BOTH_ENDS, 60)
    more = job.noted("link down", before)
    assert more.get("retry_exceeded_err"), "the device gave up no packet"
    assert len(job.records("lost")) == lost, "a machine was given up for a link that had another carrier"
    before = job.counters()
    job.await_epochs(3)
    assert job.noted("link up again", before).get("sent_pkts", 0) > 0


def both_cards_are_unplugged(job: Job) -> None:
    """For 3 s, less than a heartbeat may be late."""
    for state, seconds in (("down", 3.0), ("up", 0.0)):
        for line in ("rdma", "host"):
            job.machines[1].link(line, state)
        time.sleep(seconds)
    job.await_epochs(2)
    job.note(f"both cards were down for 3 s; given up meanwhile: {[r['text'] for r in job.records('lost')]}")


def a_sidecar_is_killed(job: Job) -> None:
    """kill -9; it is started again, and finds its files."""
    job.machines[1].ask(KILL_SIDECAR)
    job.await_epochs(3)
    job.note("a sidecar was killed, epochs go on")
    await_copies(job)
    job.await_links(BOTH_ENDS, 60)
    job.note("it is back, with copies in sync")


def a_machine_loses_power(job: Job) -> None:
    """Another one takes its place, at another address; its sidecar insists on RDMA."""
    job.machines.pop(1).power_off()
    off = time.monotonic()
    job.start_machine(1, 13, INSIST)
    job.await_epochs(2)
    job.note(f"a machine was switched off, two epochs later after {time.monotonic() - off:.1f} s")
    await_copies(job)
    job.await_links(BOTH_ENDS, 60)
    # A link carries its first bytes over TCP, until both devices are connected: the first copy may have been among them.
    before, already = job.machines[1].counters(), job.metric(1, "snapshot_received_bytes")
    job.place("0.0")
    job.place("0.0", "1.0")
    await_that(lambda: job.metric(1, "snapshot_received_bytes") > already, "bytes of copies on the new machine", 60)
    copied = job.metric(1, "snapshot_received_bytes") - already
    more = grown(before, job.machines[1].counters())
    job.note(f"{copied} bytes of state were copied to the new machine, which counted {more}")
    assert more.get("rx_bytes", 0) > copied, "the state did not come over RDMA"


def await_copies(job: Job) -> None:
    """Have every virtual node in two places."""
    await_that(lambda: all(len(in_sync) == 2 for in_sync, _ in job.ask("status")["groups"]), "two copies", 150)


FAULTS: tuple[Callable[[Job], None], ...] = (
    state_moves,
    packets_get_lost,
    the_rdma_card_is_unplugged,
    both_cards_are_unplugged,
    a_sidecar_is_killed,
    a_machine_loses_power,
)


@pytest.mark.timeout(1300)
def test_a_job_on_machines_with_rdma(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
    with Network():
        job = Job(tmp_path)
        try:
            job.start_redis()
            job.start_machine(0, 11)
            job.start_machine(1, 12)
            checkpoint = tmp_path / "shared-checkpoint"
            job.start_driver(checkpoint)
            job.await_epochs(3, 400)
            job.await_links(BOTH_ENDS, 60)
            job.note("the job runs")
            for fault in FAULTS:
                fault(job)
            # The rest of the input, in large epochs, by another driver.
            job.drivers[0].kill()
            job.start_driver(checkpoint, epoch_max_rows=100_000, epoch_interval_ms=50)
            await_that(lambda: job.ended() is not None, "end of the input", 400)
            assert job.ended() == 0
            job.note(f"the job has ended; lost: {[r['text'] for r in job.records('lost')]}")
        except (AssertionError, TimeoutError) as failed:
            raise AssertionError(f"{failed}\n{job.story()}") from failed
        finally:
            job.close()
    missing, extra = runner.difference("nbq5", EVENTS, ARGS, tmp_path / "out", tmp_path)
    assert not missing and not extra, f"missing {len(missing)} {missing[:5]}, unexpected {len(extra)} {extra[:5]}"
