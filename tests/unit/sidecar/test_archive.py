"""Checkpoints of the data of several instances: what is loaded from the chains is what the leaders had."""

from __future__ import annotations

import queue
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ferry.contract import messages as m
from ferry.contract.manifest import Manifest
from ferry.contract.names import Attempt, CommitId, Step
from ferry.durable.catalog import CheckpointCatalog
from ferry.durable.location import Location
from ferry.protocol import instance as core
from ferry.sidecar import archive, loading, shadows, uploads
from ferry.sidecar.data import Data
from ferry.store.state import State
from ferry.system import files
from tests.unit.sidecar.leaders import OPERATORS, SECONDS, Cluster, fragments, same, until

records = st.lists(st.tuples(st.integers(0, 12), st.integers(0, 25), st.integers(0, 9)), max_size=8)


@given(st.sampled_from([1, 8]), st.integers(1, 3), st.data())
@settings(max_examples=5, deadline=None)
def test_a_checkpoint_is_what_the_leaders_had(vnodes: int, instances: int, data: Any) -> None:
    """Leadership moves, scans begin anew, and each checkpoint is loaded into instances of another number."""
    assigned = st.lists(st.integers(0, instances - 1), min_size=vnodes, max_size=vnodes)
    with tempfile.TemporaryDirectory() as folder, ExitStack() as end, pytest.MonkeyPatch.context() as patch:
        patch.setattr(files, "sync", lambda path: path.stat().st_size)  # It is slow, and no power is cut here.
        patch.setattr(archive, "REBASE_BYTES", data.draw(st.sampled_from([0, 1 << 30])))
        directory = Path(folder)
        cluster = Cluster(directory / "first", instances, vnodes)
        end.callback(cluster.close)
        cluster.lead(data.draw(assigned))
        for number in range(data.draw(st.integers(2, 5))):
            rows = [(k, t + number * 7, n) for k, t, n in data.draw(records)]
            cluster.run(rows, number * 7 + data.draw(st.integers(0, 9)))
            for _ in range(data.draw(st.integers(0, 2))):
                cluster.lead(data.draw(assigned))
                for _ in range(data.draw(st.integers(0, 3))):
                    cluster.pump()
            cluster.final()
            if data.draw(st.booleans()):
                manifest = cluster.checkpoint()
                wanted = st.lists(st.integers(0, 1), min_size=vnodes, max_size=vnodes)
                other = cluster.restored(manifest, directory / f"other-{number}", data.draw(wanted), 2)
                end.callback(other.close)
                same(cluster, other)
        manifest = cluster.checkpoint()
        other = cluster.restored(manifest, directory / "last", [0] * vnodes, 1)
        end.callback(other.close)
        for number in range(5, 8):
            rows = [(k, t + number * 7, n) for k, t, n in data.draw(records)]
            for one in (cluster, other):
                one.run(rows, number * 7)
            assert other.fired == cluster.fired
            for one in (cluster, other):
                one.final()
            same(cluster, other)


ROWS = [(k, 5, k) for k in range(13)]


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    """One instance that has one epoch."""
    for name in ("AGAIN_SECONDS", "LOOK_SECONDS"):
        monkeypatch.setattr(archive, name, 0.01)
    monkeypatch.setattr(uploads, "RETRY_SECONDS_MAX", 0.1)
    made = Cluster(tmp_path / "first", 1, 8)
    made.lead([0] * 8)
    made.run(ROWS, 3)
    made.final()
    yield made
    made.close()


def is_right(cluster: Cluster) -> None:
    """The next checkpoint is what the leader has."""
    other = cluster.restored(cluster.checkpoint(), cluster.directory / f"other-{cluster.number}", [0, 1] * 4, 2)
    same(cluster, other)
    other.close()


def away(cluster: Cluster) -> None:
    """A file is where the folder of the store was: whatever is done there fails."""
    (cluster.directory / "store").rename(cluster.directory / "hidden")
    (cluster.directory / "store").touch()


def back(cluster: Cluster) -> None:
    (cluster.directory / "store").unlink()
    (cluster.directory / "hidden").rename(cluster.directory / "store")


def test_a_store_that_goes_away_in_the_middle_of_a_scan(cluster: Cluster) -> None:
    """Its files cannot even be removed then: whoever writes goes on all the same."""
    cluster.pump()
    one = cluster.all[0].archive
    assert one is not None
    (scan,) = one._scans
    until(lambda: bool(one._uploads._writers.get(scan)))
    away(cluster)
    while one.pump():
        pass
    until(lambda: scan.failed)
    back(cluster)
    is_right(cluster)


def test_what_is_written_rests_and_not_for_long(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """Epochs go on meanwhile; but somebody may wait for the checkpoint."""
    is_right(cluster)
    rests: list[float] = []
    monkeypatch.setattr(uploads, "RESTS", 1e9)
    monkeypatch.setattr(uploads, "REST_SECONDS", 0.05)
    monkeypatch.setattr(
        uploads.Uploads, "_rest", lambda self, rest=uploads.Uploads._rest: rests.append(timed(rest, self))
    )
    cluster.run(ROWS, 3)
    cluster.final()
    is_right(cluster)
    assert sum(rests) >= 0.04
    assert max(rests) < 5


def timed(act: Callable[[Any], None], *arguments: Any) -> float:
    """Seconds that it took."""
    began = time.monotonic()
    act(*arguments)
    return time.monotonic() - began


def test_one_frozen_shadow_waits_for_the_store_and_no_more(cluster: Cluster) -> None:
    is_right(cluster)
    away(cluster)
    cluster.run(ROWS, 3)
    cluster.final()
    cluster.ask()
    for _ in range(3):
        cluster.run(ROWS, 3)
        cluster.final()
        cluster.ask()
        for _ in range(20):
            cluster.pump()
            time.sleep(0.005)
    assert len(list((cluster.directory / "0" / "archive").iterdir())) == 2
    assert cluster.answers.empty()
    back(cluster)
    assert cluster.heard() == [b""]
    is_right(cluster)


def test_an_answer_that_is_there_at_once_is_heard(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    is_right(cluster)
    freeze = shadows.Shadows.freeze

    def slowly(self: shadows.Shadows, changes: shadows.FrozenChanges) -> None:
        freeze(self, changes)
        until(lambda: changes.files is not None)
        time.sleep(0.1)

    monkeypatch.setattr(shadows.Shadows, "freeze", slowly)
    cluster.ask()
    assert all(cluster.heard(pump=False))


def test_changes_that_are_lost_before_a_freeze_are_in_no_checkpoint(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The loop has asked for the freeze before it hears of it."""
    is_right(cluster)
    asked = threading.Event()

    def full(*_: object) -> State:
        assert asked.wait(SECONDS)
        raise OSError("No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(shadows, "open_state", full)
        cluster.run(ROWS, 3)
        cluster.final()
        cluster.ask()
        asked.set()
        assert cluster.heard() == [b""]
    is_right(cluster)


def test_what_comes_too_fast_is_scanned_anew_and_then_collected(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_right(cluster)
    with monkeypatch.context() as patch:
        patch.setattr(shadows, "WAITING_BYTES", 10)
        for _ in range(3):
            cluster.run(ROWS, 3)
            cluster.final()
    one = cluster.all[0].archive
    assert one is not None and one._shadows.lost
    is_right(cluster)
    until(lambda: one._shadows._waiting_bytes == 0)
    assert not one._shadows.lost


def test_what_left_and_came_back_has_nothing_of_before(cluster: Cluster) -> None:
    is_right(cluster)
    cluster.run(ROWS, 3)
    cluster.lead([0] * 4 + [1] * 4)
    cluster.lead([0] * 8)
    cluster.run([(k, 6, 9) for k in range(13)], 4)
    cluster.final()
    is_right(cluster)


def test_after_a_file_was_lost_all_is_written_anew_once(cluster: Cluster) -> None:
    cluster.run([(k, 0, 1) for k in range(20)], 1)
    cluster.final()
    before = {file.name for file in cluster.checkpoint().files}
    cluster.run([(3, 1, 1)], 2)
    cluster.final()
    cluster.anew = True
    after = cluster.checkpoint()
    assert after.files and not before & {file.name for file in after.files}
    assert {file.name for file in after.files} <= {file.name for file in cluster.checkpoint().files}


def test_a_scan_that_nobody_needs_is_not_read_on(cluster: Cluster) -> None:
    one = cluster.all[0].archive
    assert one is not None
    (scan,) = one._scans
    cluster.lead([1] * 8)
    assert scan.failed
    cluster.pump()
    assert not one._scans and scan.ended


def test_a_shadow_lets_go_of_what_is_final(tmp_path: Path) -> None:
    """The store may be away for hours: what windows have fired is not collected all the time."""
    frozen: queue.SimpleQueue[shadows.FrozenChanges] = queue.SimpleQueue()
    made = shadows.Shadows(OPERATORS[:1], 8, tmp_path / "archive", frozen.put)
    cluster = Cluster(tmp_path, 1, 8)
    cluster.lead([0] * 8)
    for epoch in range(5):
        begin = epoch * 100
        merged = cluster.all[0].states[0].combine(fragments(OPERATORS[0], [(k, begin, 0) for k in range(10)], 0))
        made.apply(0, epoch, "x", merged)
        made.release(epoch, (begin + 50,))
    made.freeze(changes := shadows.FrozenChanges(0, 5, ()))
    assert frozen.get(timeout=SECONDS) is changes and not changes.lost
    assert changes.shadows[0].statistics()["entries"].sum() == 0
    cluster.close()


def test_a_restore_that_was_cut_short_leaves_nothing(cluster: Cluster) -> None:
    manifest = cluster.checkpoint()
    other = cluster.restored(manifest, cluster.directory / "other", [0] * 8, 1)
    url = CheckpointCatalog(Location(str(cluster.directory / "store"), "j")).url(manifest)
    commit = m.Commit(manifest.commit_id, 0, (), b"", f"{url}#3")
    done = other.all[0].perform(core.Restore(commit, (1, 5)))
    assert done == core.Restored(commit)
    for state in other.all[0].states:
        assert not state.statistics()["entries"][[0, 2, 3, 4, 6, 7]].any()
    other.close()


def of_its(cluster: Cluster, manifest: Manifest, vnodes: tuple[int, ...]) -> tuple[core.LoadAhead, core.Restore]:
    """A restore of these, and what is said of it before."""
    origin = f"{CheckpointCatalog(Location(str(cluster.directory / 'store'), 'j')).url(manifest)}#3"
    return core.LoadAhead(origin, vnodes), core.Restore(m.Commit(manifest.commit_id, 0, (), b"", origin), vnodes)


def entries(data: Data) -> list[int]:
    """Of all operators together, by virtual node."""
    found: list[int] = sum(state.statistics()["entries"] for state in data.states).tolist()
    return found


def test_what_was_loaded_ahead_is_not_loaded_again(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    manifest = cluster.checkpoint()
    other = cluster.restored(manifest, cluster.directory / "other", [0] * 8, 1).all[0]
    expected = entries(other)
    reads: list[str] = []
    read = loading.read_checkpoint
    monkeypatch.setattr(loading, "read_checkpoint", lambda *given: reads.append(given[0]) or read(*given))
    ahead, restore = of_its(cluster, manifest, (1, 5))
    other.perform(ahead)
    other.perform(ahead)
    assert other.perform(restore) == core.Restored(restore.commit)
    assert entries(other) == [n if v in (1, 5) else 0 for v, n in enumerate(expected)]
    assert len(reads) == 1
    # Of others than what is asked for in the end nothing is there.
    other.perform(of_its(cluster, manifest, (2, 3))[0])
    assert other.perform(restore) == core.Restored(restore.commit)
    assert entries(other) == [n if v in (1, 5) else 0 for v, n in enumerate(expected)]


@pytest.mark.parametrize("effect", [core.Drop((7,)), core.Apply(CommitId(Step(99, 0), Attempt(1, 1)))])
def test_of_what_was_loaded_ahead_for_nobody_nothing_stays(
    cluster: Cluster, effect: core.Effect, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also when it is still being loaded."""
    manifest = cluster.checkpoint()
    other = cluster.restored(manifest, cluster.directory / "other", [0] * 8, 1).all[0]
    read, goes_on = loading.read_checkpoint, threading.Event()

    def slowly(*given: Any) -> Iterator[Any]:
        for part in read(*given):
            yield part
            goes_on.wait(1)

    monkeypatch.setattr(loading, "read_checkpoint", slowly)
    other.perform(of_its(cluster, manifest, (1, 5))[0])
    until(lambda: sum(entries(other)) > 0)
    other.perform(effect)
    goes_on.set()
    time.sleep(0.1)
    assert sum(entries(other)) == 0


def test_what_cannot_be_loaded_ahead_is_a_reason_when_it_is_asked_for(cluster: Cluster) -> None:
    manifest = cluster.checkpoint()
    ahead, restore = of_its(cluster, manifest, (1, 5))
    CheckpointCatalog(Location(str(cluster.directory / "store"), "j")).remove(manifest)
    cluster.all[0].perform(ahead)
    time.sleep(0.1)
    done = cluster.all[0].perform(restore)
    assert isinstance(done, core.Restored) and "there is no checkpoint" in done.reason


def test_what_was_in_the_way_of_loading_ahead_may_be_over(cluster: Cluster) -> None:
    manifest = cluster.checkpoint()
    other = cluster.restored(manifest, cluster.directory / "other", [0] * 8, 1).all[0]
    ahead, restore = of_its(cluster, manifest, (1, 5))
    away(cluster)
    other.perform(ahead)
    time.sleep(0.1)
    back(cluster)
    assert other.perform(restore) == core.Restored(restore.commit)
    assert sum(entries(other)) > 0


def test_a_manifest_that_is_gone_is_a_reason(cluster: Cluster) -> None:
    manifest = cluster.checkpoint()
    catalog = CheckpointCatalog(Location(str(cluster.directory / "store"), "j"))
    url = catalog.url(manifest)
    catalog.remove(manifest)
    done = cluster.all[0].perform(core.Restore(m.Commit(manifest.commit_id, 0, (), b"", f"{url}#3"), (1, 5)))
    assert isinstance(done, core.Restored) and "there is no checkpoint" in done.reason
