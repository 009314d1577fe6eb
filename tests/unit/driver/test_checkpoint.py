"""A driver goes on only with offsets that belong to the state it has found; what was lost of them it writes again."""

from __future__ import annotations

import contextlib
import random
import shutil
from pathlib import Path

import pytest

from ferry.contract import limits
from ferry.contract.errors import SpecRefused, StateUnavailable, Unreachable
from ferry.driver.checkpoint import COMMIT, Checkpoint
from ferry.system import files


def offsets(epoch: int) -> str:
    return f'v1\n{{"batchWatermarkMs":0,"conf":{{}}}}\n{{"positions":{{"bids":{epoch * 10}}}}}\n-'


class Query:
    """What Spark writes for one epoch after another."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.checkpoint = folder, Checkpoint(folder)
        self.notes: dict[int, str] = {}
        (folder / "offsets").mkdir(parents=True)
        (folder / "commits").mkdir()
        (folder / "metadata").write_text('{"id":"q"}')

    def begin(self, epoch: int) -> None:
        (self.folder / f"offsets/{epoch}").write_text(offsets(epoch))
        self.notes[epoch] = self.checkpoint.notes(epoch)

    def end(self, epoch: int) -> None:
        (self.folder / f"commits/{epoch}").write_text(COMMIT)

    def settle(self, epoch: int, final: bool = False, *foreign: str) -> bool:
        return self.checkpoint.settle(epoch, final, self.notes.get(epoch), foreign)

    def begins(self) -> int:
        """What Spark does next: it needs the last two offsets whole, and repeats an epoch without an end."""
        known = {int(p.name): p.read_text() for p in self.folder.glob("offsets/*")}
        last = max(known, default=-1)
        for epoch in range(max(last - 1, 0), last + 1):
            assert known[epoch] == offsets(epoch)
        ends = {int(p.name): p.read_text() for p in self.folder.glob("commits/*") if p.name.isdigit()}
        assert all(text == COMMIT for text in ends.values())
        return last if max(ends, default=-1) < last else last + 1


@pytest.fixture
def query(tmp_path: Path) -> Query:
    """Epochs 0 to 6 have ended, 7 has begun and is committed in the state."""
    made = Query(tmp_path / "checkpoint")
    for epoch in range(8):
        made.begin(epoch)
        made.end(epoch)
    (made.folder / "commits/7").unlink()
    return made


def lose(query: Query, *names: str) -> None:
    for name in names:
        there = query.folder / name
        shutil.rmtree(there) if there.is_dir() else there.unlink()


LOSSES = [(), ("offsets/7",), ("offsets/7", "commits/6"), ("offsets/6", "offsets/7"), ("commits",), ("offsets",),
          ("metadata", "offsets", "commits"), (".",)]  # fmt: skip


@pytest.mark.parametrize("lost", LOSSES, ids=" ".join)
def test_the_last_epoch_is_begun_again_with_its_own_offsets_whatever_was_lost(
    query: Query, lost: tuple[str, ...]
) -> None:
    lose(query, *lost)
    assert query.settle(7) is True
    assert query.begins() == 7
    assert (query.folder / "metadata").read_text() == '{"id":"q"}'
    assert query.settle(7) is True, "and again"


@pytest.mark.parametrize("lost", LOSSES, ids=" ".join)
def test_an_epoch_whose_rows_were_given_up_is_not_begun_again(query: Query, lost: tuple[str, ...]) -> None:
    lose(query, *lost)
    assert query.settle(7, final=True) is False
    assert query.begins() == 8


def test_what_has_ended_is_not_begun_again(query: Query) -> None:
    query.end(7)
    assert query.settle(7) is False and query.begins() == 8
    query.begin(8)
    lose(query, "commits", "offsets/7")
    assert query.settle(7) is False and query.begins() == 8, "Spark had begun the next"


def test_the_first_epoch(tmp_path: Path) -> None:
    one = Query(tmp_path / "checkpoint")
    assert one.settle(-1) is False
    one.begin(0)
    assert one.settle(-1) is False and one.begins() == 0, "begun and not committed: the same range is read"
    lose(one, ".")
    assert one.settle(0) is True and one.begins() == 0


def test_an_epoch_was_planned_when_spark_says_so(tmp_path: Path) -> None:
    (tmp_path / "offsets").mkdir()
    (tmp_path / "offsets/4").write_text(
        'v1\n{"batchWatermarkMs":0,"batchTimestampMs":1700000000123,"conf":{}}\n{"a":4}'
    )
    assert Checkpoint(tmp_path).planned(4) == 1_700_000_000_123


def test_a_torn_file_of_an_epoch_that_only_began_is_planned_anew(query: Query) -> None:
    query.end(7)
    whole = offsets(8)
    for torn in ("", whole[:5], whole[:-4], whole[:-2]):
        (query.folder / "offsets/8").write_text(torn)
        assert query.settle(7) is False and query.begins() == 8
    (query.folder / "offsets/8").write_text(whole)
    assert query.settle(7) is False and query.begins() == 8
    assert (query.folder / "offsets/8").exists()


@pytest.mark.parametrize("torn", ["", "v1", "v1\n{", "v1\n{\0\0\0", "\0" * 30], ids=repr)
def test_a_torn_file_of_a_committed_epoch_is_written_again(query: Query, torn: str) -> None:
    (query.folder / "offsets/7").write_text(torn)
    (query.folder / "commits/6").write_text(torn)
    assert query.settle(7) is True and query.begins() == 7


def test_what_a_driver_that_was_given_up_has_planned_anew_is_put_right(query: Query) -> None:
    lose(query, "offsets/7")
    (query.folder / "offsets/7").write_text(offsets(9))
    with pytest.raises(StateUnavailable, match="is not what the state has committed"):
        query.settle(7, False, "orders")
    assert query.settle(7) is True and query.begins() == 7


def test_rows_are_not_given_out_for_an_epoch_that_spark_has_planned_anew_meanwhile(query: Query) -> None:
    query.settle(7)
    query.checkpoint.require_same(7, query.notes[7])
    lose(query, "offsets/7")
    query.checkpoint.require_same(7, query.notes[7])  # Spark may have looked before: the next driver writes it again.
    (query.folder / "offsets/7").write_text(offsets(9))
    for notes in (query.notes[7], "0" * 64 + " 70000"):
        with pytest.raises(Unreachable, match="planned anew"):
            query.checkpoint.require_same(7, notes)
    query.checkpoint.require_same(7, None)
    assert query.settle(7) is True and query.begins() == 7, "the next driver"


@pytest.mark.parametrize("name", ["offsets/7", "offsets/6", "metadata"])
def test_offsets_of_another_day_end_the_job(query: Query, name: str) -> None:
    (query.folder / name).write_text(offsets(9))
    if name == "offsets/7":
        query.end(7)
    with pytest.raises(StateUnavailable, match=r"is not what the state has committed.*Bring back"):
        query.settle(7)


@pytest.mark.parametrize(("ended", "begun"), [(8, 8), (7, 9)])
def test_state_that_is_older_than_the_offsets_ends_the_job(query: Query, ended: int, begun: int) -> None:
    query.end(ended)
    query.begin(begun)
    with pytest.raises(StateUnavailable, match=r"state ends with epoch 7.*with epoch 8"):
        query.settle(7)
    with pytest.raises(StateUnavailable):
        query.settle(-1)


def test_the_log_of_a_source_of_sparks_own_cannot_be_written(query: Query) -> None:
    assert query.settle(7, False, "orders") is True, "nothing is missing"
    lose(query, "offsets/7")
    with pytest.raises(StateUnavailable, match=r"offsets/7.*orders: Spark's own source.*Bring back"):
        query.settle(7, False, "orders")
    assert query.settle(7) is True


def test_of_offsets_that_are_too_many_only_the_digest_is_kept(query: Query) -> None:
    large = offsets(7) + "".join(random.Random(1).choices("abcdefghijklmnop", k=4 * limits.OFFSETS_BYTES_MAX))
    (query.folder / "offsets/7").write_text(large)
    query.notes[7] = query.checkpoint.notes(7)
    assert len(query.notes[7]) < 100
    assert query.settle(7) is True
    (query.folder / "offsets/7").write_text(large + "x")
    with pytest.raises(StateUnavailable, match="is not what"):
        query.settle(7)
    lose(query, "offsets/7")
    with pytest.raises(StateUnavailable, match="too many"):
        query.settle(7)


def test_state_of_a_release_that_kept_no_offsets(query: Query) -> None:
    del query.notes[7]
    assert query.settle(7) is True
    query.end(7)
    assert query.settle(7) is False
    lose(query, "commits", "offsets")
    with pytest.raises(StateUnavailable, match="Bring back"):
        query.settle(7)


def names(folder: Path) -> set[int]:
    return {int(p.name) for p in folder.iterdir()}


def test_a_restore_takes_spark_back_to_the_end_of_an_epoch(query: Query) -> None:
    for at in (5, 5, 2):
        query.checkpoint.rewind(at, query.notes[at])
        assert query.checkpoint.ended() <= at
        assert query.settle(at, final=True) is False and query.begins() == at + 1
    assert names(query.folder / "offsets") == names(query.folder / "commits") == {0, 1, 2}
    query.checkpoint.rewind(9, query.notes[7])
    assert query.begins() == 3, "what is older stays"


def test_offsets_that_spark_does_not_keep_any_more_come_from_the_notes(query: Query) -> None:
    for old in range(5):
        lose(query, f"offsets/{old}", f"commits/{old}")
    query.checkpoint.rewind(3, query.notes[3])
    assert query.settle(3, True, "orders") is False, "a source of Spark's own has what it planned since"
    assert query.begins() == 4
    lose(query, ".")
    query.checkpoint.rewind(3, query.notes[3])
    with pytest.raises(StateUnavailable, match=r"orders: Spark's own source.*Bring back"):
        query.settle(3, True, "orders")
    assert query.settle(3, True) is False and query.begins() == 4


def test_the_log_of_a_source_that_is_lost_is_not_taken_for_one_that_is_ahead(query: Query) -> None:
    lose(query, "metadata", "offsets/2", "offsets/3")
    query.checkpoint.rewind(3, query.notes[3])
    with pytest.raises(StateUnavailable, match="Spark's own source"):
        query.settle(3, True, "orders")


def test_too_many_offsets_for_the_notes_have_to_be_there(query: Query) -> None:
    query.checkpoint.rewind(3, "0" * 64 + " 70000")
    assert query.checkpoint.ended() == 3
    with pytest.raises(StateUnavailable, match="is not what the state has committed"):
        query.checkpoint.settle(3, True, "0" * 64 + " 70000", ())


def test_another_querys_checkpoint_is_not_rewound(query: Query) -> None:
    (query.folder / "metadata").write_text('{"id":"other"}')
    with pytest.raises(StateUnavailable, match=r"metadata is not what.*another query"):
        query.checkpoint.rewind(3, query.notes[3])
    assert names(query.folder / "offsets") == set(range(8))


@pytest.mark.parametrize("after", range(1, 8))
def test_a_rewind_that_is_cut_short_is_done_again(query: Query, monkeypatch: pytest.MonkeyPatch, after: int) -> None:
    unlink, sync = Path.unlink, files.sync
    done: list[str] = []

    def removed(path: Path) -> None:
        if len(done) == 2 * after:
            raise KeyboardInterrupt
        done.append(f"- {path.parent.name}/{path.name}")
        unlink(path)

    def synced(path: Path) -> int:
        done.append(path.name)
        return sync(path)

    with monkeypatch.context() as patch, contextlib.suppress(KeyboardInterrupt):
        patch.setattr(Path, "unlink", removed)
        patch.setattr(files, "sync", synced)
        query.checkpoint.rewind(3, query.notes[3])
    gone = [f"{log}/{epoch}" for epoch in (7, 6, 5, 4) for log in ("commits", "offsets")][1:]
    steps = [step for name in gone[:after] for step in (f"- {name}", name.partition("/")[0])]
    assert done == steps, "each is off the disk before the next one goes"
    query.begins()
    query.checkpoint.rewind(3, query.notes[3])
    assert query.settle(3, True) is False and query.begins() == 4


@pytest.mark.parametrize(
    ("splits", "foreign", "words"),
    [
        (["orders"], [], None),
        (["orders", "more"], [], "source 'more' was added: "),
        (["other"], [], "source 'other' was added; source 'orders' was removed: "),
        ([], [], "source 'orders' was removed"),
        (["orders"], ["rate"], r"there were 0 sources of Spark's own, and now there are 1 \(rate\)"),
    ],
)
def test_other_sources_than_those_of_the_offsets_are_refused_by_name(
    tmp_path: Path, splits: list[str], foreign: list[str], words: str | None
) -> None:
    checkpoint = Checkpoint(tmp_path)
    checkpoint.require_sources(-1, splits, foreign)
    checkpoint.begin(0, {"positions": {"orders": 1}, "tick": 0, "flushed": False})
    if words is None:
        return checkpoint.require_sources(0, splits, foreign)
    with pytest.raises(SpecRefused, match=words):
        checkpoint.require_sources(0, splits, foreign)
