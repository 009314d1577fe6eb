"""Loads state from a checkpoint, on a thread of its own, perhaps before the Commit that asks for it.

    LoadAhead --> loading ... Restore (of the same) --> until it is loaded --> Restored

Must never load a row after it was stopped, nor leave a row that was not requested.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from ferry.contract.errors import FerryError
from ferry.contract.manifest import StoredFile
from ferry.durable.copies import Copies
from ferry.durable.reading import ahead, read_checkpoint
from ferry.protocol.instance.io import Restore, Restored
from ferry.store.process import ProcessState
from ferry.store.state import State

log = logging.getLogger("ferry.sidecar")


class LoadRequest(NamedTuple):
    """A request to load."""

    origin: str
    """of the table; it begins with the URL of the manifest"""
    vnodes: tuple[int, ...]


class Loader:
    """Loads the states of an instance. Its methods are for the instance's loop."""

    def __init__(
        self,
        me: str,
        states: Sequence[State],
        virtual_nodes: int,
        lock: AbstractContextManager[object],
        copies: Copies | None,
        alive: Callable[[], None],
        loaded: Callable[[int, pa.RecordBatch], None] = lambda operator, batch: None,
    ) -> None:
        """`lock` is held while a state is changed; `alive` is called between the parts of a long operation.

        `loaded` gets the rows of each operator.
        """
        self._me = me
        self._states = states
        self._virtual_nodes = virtual_nodes
        self._lock = lock
        self._copies = copies
        self._alive = alive
        self._loaded = loaded
        self._loading: Loading | None = None

    def ahead(self, origin: str, vnodes: tuple[int, ...]) -> None:
        """Begin to load what a Restore will ask for."""
        self._begin(LoadRequest(origin, vnodes))

    def restore(self, effect: Restore) -> Restored:
        """Load the state, the newest changes first: as in a snapshot, existing entries are newer."""
        wanted = LoadRequest(effect.commit.origin, effect.vnodes)
        if self._loading is not None and not (self._loading.wanted == wanted and self._is_loaded()):
            self.stop()  # The cause of an error may have passed.
        try:
            self._begin(wanted).wait(self._alive)
        except FerryError as error:
            return Restored(effect.commit, f"{type(error).__name__}: {error}")
        finally:
            self._loading = None
        with self._lock:
            for state in self._states:
                if isinstance(state, ProcessState):
                    state.whole(np.array(effect.vnodes, dtype=np.int64))
        return Restored(effect.commit)

    def stop(self) -> None:
        """Drop state that was loaded ahead and not requested."""
        if self._loading is not None:
            self._loading.stop()
            self._loading = None
            self._drop_all()

    def _begin(self, wanted: LoadRequest) -> Loading:
        if self._loading is None or self._loading.wanted != wanted:
            self.stop()
            self._drop_all()  # An interrupted restore may have loaded other virtual nodes.
            self._loading = Loading(self._me, wanted, self._copies, self._load)
        return self._loading

    def _is_loaded(self) -> bool:
        """Whether the load ahead has ended without an error."""
        assert self._loading is not None
        try:
            self._loading.wait(self._alive)
        except FerryError as error:
            log.warning("%s: loading ahead failed: %s", self._me, error)
            return False
        return True

    def _load(self, file: StoredFile, batch: pa.RecordBatch) -> None:
        with self._lock:
            self._states[file.operator].apply_absent(batch)
            self._loaded(file.operator, batch)

    def _drop_all(self) -> None:
        with self._lock:
            for state in self._states:
                state.drop(np.arange(self._virtual_nodes))


class Loading:
    """One restore. `load(file, rows)` is called on its thread."""

    def __init__(
        self, me: str, wanted: LoadRequest, copies: Copies | None, load: Callable[[StoredFile, pa.RecordBatch], None]
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
        """Wait until all is loaded; `alive` is called repeatedly. Raises FerryError when the load fails."""
        while self._thread.is_alive():
            self._thread.join(0.05)
            alive()
        if self._failed is not None:
            raise self._failed

    def stop(self) -> None:
        """Stop loading."""
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
