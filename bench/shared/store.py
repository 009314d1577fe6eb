"""Where checkpoints go while they are measured: a folder, or an S3, on a machine of its own where there are links."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from bench.shared.ferry_job import work_directory
from bench.shared.links import STORE, Links

FOLDER, S3 = "folder", "s3"


@dataclass(frozen=True, slots=True)
class Store:
    """One that is empty at first."""

    location: str
    """as `state.checkpoint.location` takes it"""
    files: Path
    """where the objects lie that are put below that location"""
    endpoint: str | None = None
    """HOST:PORT of an S3; its keys are in the environment"""


@contextmanager
def store(kind: str, apart: Links | None = None) -> Iterator[Store]:
    """A store of this kind."""
    with work_directory("store") as folder:
        if kind == FOLDER:
            yield Store(str(folder), folder)
            return
        from tests.s3 import S3Server

        address, inside = ("127.0.0.1", ()) if apart is None else (apart.address(STORE), apart.inside(STORE))
        server = S3Server(folder / "s3", address, inside)
        os.environ.update(server.environment)
        try:
            yield Store(server.url, server.objects / "jobs", f"{address}:{server.port}")
        finally:
            server.kill()
