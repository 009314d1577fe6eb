"""Sockets lie where their paths are short enough, and where nobody else may open them."""

from __future__ import annotations

import os
import socket
import stat
import tempfile
import uuid
from pathlib import Path

import pyarrow.flight as fl
import pytest

from ferry.system.flight_places import at_own_socket, at_socket, socket_folder


@pytest.fixture
def temporary(monkeypatch: pytest.MonkeyPatch) -> Path:
    """A short one in place of the system's."""
    made = Path(tempfile.mkdtemp(dir="/tmp"))
    made.chmod(0o777)
    monkeypatch.setattr(tempfile, "tempdir", str(made))
    return made


@pytest.mark.parametrize("length", [3, 40, 60, 200])
def test_sockets_that_ask_for_no_secret_are_in_a_folder_of_their_own(temporary: Path, length: int) -> None:
    path = temporary / ("x" * length) / "spark-sockets"
    folder = socket_folder(path)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert socket_folder(path) == folder, "of the next driver, too"
    with socket.socket(socket.AF_UNIX) as one:
        one.bind(str(folder / f".{uuid.uuid4()}.sock"))


def test_a_folder_that_somebody_else_has_made_is_not_used(temporary: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = temporary / ("x" * 200) / "spark-sockets"
    taken = socket_folder(path)
    monkeypatch.setattr(os, "getuid", lambda: taken.stat().st_uid + 1)
    assert socket_folder(path) != taken


@pytest.mark.parametrize("name", ["a b", "é", "a%41", "a#b", "a?b"])
def test_a_path_that_is_not_the_same_in_a_url_is_not_used(temporary: Path, name: str) -> None:
    (temporary / name).mkdir()
    (temporary / "short").mkdir()
    place = at_socket(temporary / name / "flight.sock", "0.0", f"unix://{temporary}/short/redis.sock")
    assert place.location == f"grpc+unix://{temporary}/short/0.0.sock"
    server = fl.FlightServerBase(place.location)
    server.shutdown()
    assert not socket_folder(temporary / name / "spark-sockets").is_relative_to(temporary / name)


def test_two_processes_have_sockets_of_their_own_and_those_of_dead_ones_are_removed(temporary: Path) -> None:
    for number in (1, 1 << 22):  # more than any process id
        (temporary / f"loops-{number}.sock").touch()
    place = at_own_socket(temporary, "loops", "redis://elsewhere")
    assert place.location == f"grpc+unix://{temporary}/loops-{os.getpid()}.sock"
    assert [left.name for left in temporary.glob("*.sock")] == ["loops-1.sock"]
