"""State that is loaded from a checkpoint, on a thread of its own: also before the Commit that asks for it has come.

Must never load a row after it was stopped.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from typing import NamedTuple

import pyarrow as pa

from ferry.contract.errors import FerryError
from ferry.contract.manifest import StoredFile
from ferry.durable.copies import Copies
from ferry.durable.reading import ahead, read_checkpoint

log = logging.getLogger("ferry.sidecar")


class Wanted(NamedTuple):
    """What is loaded."""

    origin: str
    """of the table; it begins with the URL of the manifest"""
    vnodes: tuple[int, ...]


class Loading:
    """One restore. `load(file, rows)` is called on its thread."""

    def __init__(
        self, me: str, wanted: Wanted, copies: Copies | None, load: Callable[[StoredFile, pa.RecordBatch], None]
    ) -> None:
        self._me = me
        self.wanted = wanted
        self._load = load
        self._parts = read_checkpoint(wanted.origin.rpartition("#")[0], wanted.vnodes, copies)
        self._stop = threading.Event()
        self._failed: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="load", daemon=True)
        self._thread.start()

    def wait(self, alive: Callable[[], None]) -> None:
        """Until all is loaded; `alive` is called meanwhile. Raises FerryError when it cannot be."""
        while self._thread.is_alive():
            self._thread.join(0.05)
            alive()
        if self._failed is not None:
            raise self._failed

    def stop(self) -> None:
        """Nothing is loaded any more."""
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        try:
            self._load_all(ahead(self._parts))
        except BaseException as error:
            self._failed = error
            if not isinstance(error, FerryError):
                log.exception("%s: state could not be loaded", self._me)

    def _load_all(self, parts: Iterator[tuple[StoredFile, pa.RecordBatch]]) -> None:
        begin, loaded, loading = time.monotonic(), 0, 0.0
        for file, batch in parts:
            if self._stop.is_set():
                return
            fetched = time.monotonic()
            self._load(file, batch)
            loaded, loading = loaded + batch.nbytes, loading + time.monotonic() - fetched
        seconds = time.monotonic() - begin
        text = "%s: %d bytes of %d virtual nodes loaded in %.2f s, of which %.2f s fetching"
        log.info(text, self._me, loaded, len(self.wanted.vnodes), seconds, seconds - loading)
