"""Sockets lie where their paths are short enough, and where nobody else may open them."""

from __future__ import annotations

import socket
import stat
import uuid
from pathlib import Path

from ferry.system.flight_places import socket_folder


def test_sockets_that_ask_for_no_secret_are_in_a_folder_of_their_own(tmp_path: Path) -> None:
    short = Path("/tmp") / f"f-{uuid.uuid4().hex[:6]}"
    short.mkdir()
    short.chmod(0o755)
    deep = tmp_path / ("x" * 60)
    try:
        for path in (short / "s", deep / "s"):
            folder = socket_folder(path, f"unix://{short}/redis.sock")
            assert stat.S_IMODE(folder.stat().st_mode) == 0o700
            assert socket_folder(path, f"unix://{short}/redis.sock") == folder, "of the next driver, too"
            with socket.socket(socket.AF_UNIX) as one:
                one.bind(str(folder / f".{uuid.uuid4()}.sock"))
    finally:
        for left in sorted(short.rglob("*"), reverse=True):
            left.unlink() if not left.is_dir() else left.rmdir()
        short.rmdir()
