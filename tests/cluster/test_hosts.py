"""Driver, sidecars and Spark's workers on hosts of their own, as in pods: hosts come, die, fall silent; results stay right."""

from __future__ import annotations

import contextlib
import re
import signal
import socket
import time
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from ferry.contract import places
from ferry.contract.places import DriverPlace
from ferry.contract.settings import CheckpointSettings, RunSettings
from tests.cluster import runner
from tests.cluster.hosts import Host, Hosts, await_that

pytestmark = [pytest.mark.cluster, pytest.mark.turns, pytest.mark.timeout(600)]

EVENTS = 1_600_000
ARGS = {"seed": 41, "group": 1000, "delay_prob": 0.05, "keys": "zipf", "domain": 20_000}
VNODES = 16


def settings(base: Path) -> RunSettings:
    return RunSettings(
        job="nbq5", run="nbq5-1", directory="", secret="", redis="", pipeline_module="ferry_workloads.jobs.nbq5",
        pipeline_file=None, pipeline_args=ARGS, virtual_nodes=VNODES, replicas=1, workers=2, instances_per_worker=1,
        memory_bytes=16 << 20, epoch_interval_ms=1000, tls="run", epoch_max_rows=8_000, cores=2, events=EVENTS,
        output=str(base / "out"), spark={f"spark.{role}.extraJavaOptions": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1" for role in ("driver", "executor")},
    )  # fmt: skip


def placements(*workers: int) -> list[list[str]]:
    """Every virtual node on two of these workers."""
    count = len(workers)
    return [
        [f"{workers[v % count]}.0", f"{workers[(v + 1 + v // count % (count - 1)) % count]}.0"] for v in range(VNODES)
    ]


def place_on(hosts: Hosts, number: int, *workers: int) -> None:
    """Have the groups as wanted."""
    hosts.ask("desired", {"number": number, "placements": placements(*workers), "token": 7})
    await_that(lambda: hosts.ask("status")["desired"] == number, "desired placement", 10)
    await_that(lambda: bool(hosts.ask("status")["settled"]), f"settled groups on {workers}", 120)


def await_copies(hosts: Hosts) -> None:
    """Have every virtual node in two places."""
    await_that(lambda: all(len(in_sync) == 2 for in_sync, _ in hosts.ask("status")["groups"]), "two copies", 60)


def listening(host: Host) -> set[str]:
    """Addresses at which a host can be reached from others."""
    found = set()
    for process in host.tree():
        with contextlib.suppress(psutil.Error):  # some processes are short
            for one in process.net_connections("tcp"):
                if one.status == psutil.CONN_LISTEN:
                    found.add(one.laddr.ip.removeprefix("::ffff:"))
    return found - {"127.0.0.1"}


@pytest.mark.xdist_group("hosts")  # Five JVMs each: one story at a time.
@pytest.mark.parametrize(
    "name", ["come, die and fall silent", "come back after their successors", "take all copies with them"]
)
def test_hosts(name: str, tmp_path: Path) -> None:
    hosts = Hosts(tmp_path, settings(tmp_path))
    try:
        hosts.start_redis()
        STORIES[name](hosts, tmp_path)
        await_that(lambda: hosts.ended() is not None, "end of the input", 120)
        assert hosts.ended() == 0
    except (AssertionError, TimeoutError) as failed:
        raise AssertionError(f"{failed}\n{hosts.story()}") from failed
    finally:
        hosts.close()
    missing, extra = runner.difference("nbq5", EVENTS, ARGS, tmp_path / "out", tmp_path)
    assert not missing and not extra, f"missing {len(missing)} {missing[:5]}, unexpected {len(extra)} {extra[:5]}"


def test_two_jobs_have_no_address_in_common(tmp_path: Path) -> None:
    jobs = [Hosts(tmp_path / name, settings(tmp_path)) for name in ("a", "b")]
    with contextlib.ExitStack() as end:
        for hosts in jobs:
            end.callback(hosts.close)
        for address in [hosts.address(n) for hosts in jobs for n in (10, 21, 200)]:
            server = end.enter_context(socket.create_server((address, 7070)))
            assert server.getsockname()[0] == address


def test_workers_are_told_of_the_newest_claim(tmp_path: Path) -> None:
    hosts = Hosts(tmp_path, settings(tmp_path))
    try:
        hosts.start_redis()
        registry = hosts.registry
        places = {
            (generation, claimed, life): DriverPlace(generation, claimed, life, f"spark://{life}", "")
            for generation, claimed, life in (
                (1, False, "a"), (1, True, "b"), (2, False, "c"), (2, False, "d"), (2, True, "d"), (3, False, "e"),
            )
        }  # fmt: skip
        told = []
        for place in places.values():
            told.append(registry.announce(place))
            assert registry.driver() == place
        assert told == [True] * 6, "each is stronger than the one before, or as strong and later"
        weaker = [(3, False, "f"), (2, True, "d"), (1, False, "a")]
        assert [registry.announce(places.get(w) or DriverPlace(*w, "", "")) for w in weaker] == [True, False, False]
        registry.announce(DriverPlace(3, True, "f", "", ""))
        assert not registry.announce(places[(3, False, "e")]), "it has lost its claim"
        found = registry.driver()
        assert found is not None and found.life == "f"
    finally:
        hosts.close()


def come_die_and_fall_silent(hosts: Hosts, base: Path) -> None:
    checkpoint = base / "shared-checkpoint"
    hosts.start_driver(checkpoint)
    for index in (0, 1):
        hosts.start_worker(index)
    hosts.await_epochs(3)
    for host in (hosts.drivers[0], *hosts.workers.values()):
        assert listening(host) == {host.address}, "everything listens on the host's own address, or on the loopback one"
    assert all((h.directory / f"workers/{k}/started").exists() for k, h in hosts.workers.items())
    place = hosts.registry.driver()
    assert place is not None and place.claimed and place.control == f"https://{hosts.address(200)}:7070"
    # Prometheus may read all of them.
    assert re.search(r"^ferry_epoch [1-9]", hosts.metrics(hosts.drivers[0]), re.MULTILINE)
    for index, host in hosts.workers.items():
        assert f'ferry_instance_up{{instance="{index}.0"}} 1.0' in hosts.metrics(host)
    # A third worker comes: state moves to it, and its task slots are used.
    hosts.start_worker(2)
    place_on(hosts, 1, 0, 1, 2)
    await_that(lambda: (hosts.drivers[0].directory / "slots").read_text() == "6", "task slots of the third", 120)
    # One dies without a word.
    hosts.workers.pop(1).kill()
    place_on(hosts, 2, 0, 2)
    # One falls silent with all its connections open: work goes on without it, and it is taken back.
    silent = hosts.workers[2]
    silent.signal(signal.SIGSTOP)
    frozen = time.monotonic()
    hosts.await_epochs(3)
    log = hosts.drivers[0].directory / "log"
    await_that(lambda: "is given up: worker 2 is silent" in log.read_text(), "word of the silent host", 60)
    print(f"silent host passed over within {time.monotonic() - frozen:.1f} s")
    silent.signal(signal.SIGCONT)
    # The driver dies, and another one starts on another host with nothing but the checkpoint.
    before = {i.instance: (i.pid, i.incarnation) for i in hosts.registrations()}
    hosts.drivers[0].kill()
    killed, epoch = time.monotonic(), hosts.epoch()
    hosts.start_driver(checkpoint, epoch_max_rows=60_000, epoch_interval_ms=50)
    hosts.await_epochs(1)
    print(f"driver back after {time.monotonic() - killed:.1f} s")
    ready = [f"generation 2, committed up to epoch {e}" for e in (epoch, epoch + 1)]
    assert hosts.records("ready")[-1]["text"] in ready
    after = {i.instance: (i.pid, i.incarnation) for i in hosts.registrations()}
    assert after == before, "no sidecar noticed"


def come_back_after_their_successors(hosts: Hosts, base: Path) -> None:
    hosts.settings = replace(hosts.settings, epoch_mode="continuous")
    hosts.start_driver(base / "shared-checkpoint")
    for index in (0, 1):
        hosts.start_worker(index)
    hosts.await_epochs(3)
    assert [r["text"] for r in hosts.records("mode")] == ["continuous"]
    # One is silent, and one of its name takes its place elsewhere.
    before = hosts.workers[1]
    before.signal(signal.SIGSTOP)
    hosts.await_epochs(3)
    hosts.start_worker(1, hosts.address(21))
    place_on(hosts, 1, 0, 1)
    await_copies(hosts)
    # It comes back only to be told to end: what it takes from the registry must not be its successor's.
    before.signal(signal.SIGTERM)
    before.end(signal.SIGCONT)
    # Redis forgets everything but the journal: whoever has said something says it again, or the next worker finds nobody.
    run = hosts.settings.run
    hosts.registry._redis.delete(*(key for key in places.lasting(run) if key != places.journal(run)))
    # Only who is in the registry can be dialled by one that has just come.
    hosts.workers.pop(0).kill()
    hosts.start_worker(0)
    place_on(hosts, 2, 1, 0)
    await_copies(hosts)
    # What Redis has lost is there again.
    hosts.registry.unregister(next(e for e in hosts.registrations() if e.instance == "1.0"))
    await_that(lambda: len(hosts.registrations()) == 2, "both in the registry", 10)
    place_on(hosts, 3, 0, 1)
    hosts.drivers[0].kill()
    hosts.start_driver(base / "shared-checkpoint", epoch_max_rows=60_000, epoch_interval_ms=50)


def take_all_copies_with_them(hosts: Hosts, base: Path) -> None:
    """Nobody has the state any more: the driver's process goes on with the newest checkpoint, on its own Spark and ports."""
    store = base / "store"
    checkpoint = CheckpointSettings(str(store), 1000)
    hosts.settings = replace(hosts.settings, checkpoint=checkpoint, epoch_max_rows=30_000, epoch_interval_ms=400)
    hosts.start_driver(base / "shared-checkpoint")
    for index in (0, 1):
        hosts.start_worker(index)
    await_that(lambda: len(runner.manifests(store)) >= 2, "two checkpoints", 120)
    for index in (0, 1):
        hosts.workers.pop(index).kill()
    for index in (0, 1):
        hosts.start_worker(index)
    await_that(lambda: len(hosts.records("restore")) == 1, "nobody who has the state", 60)
    await_that(lambda: len(hosts.records("ready")) == 2, "the next driver", 120)
    assert (hosts.drivers[0].directory / "log").read_text().count("incubator modules") == 1, "one JVM for two drivers"
    for host in hosts.workers.values():
        assert (host.directory / "log").read_text().count("follows the driver") == 1, "Spark's workers do not notice"


STORIES = {
    "take all copies with them": take_all_copies_with_them,
    "come, die and fall silent": come_die_and_fall_silent,
    "come back after their successors": come_back_after_their_successors,
}
