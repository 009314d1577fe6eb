"""A user's function as a sink: it gets the rows of each epoch."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from ferry.connectors.sink import Sink
from ferry.connectors.users import require_arguments

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


class ForeachEpoch(Sink):
    """Calls the user's function with (epoch, generation, DataFrame). The function must be idempotent by epoch."""

    needs_frame = True

    def __init__(
        self, function: Callable[[int, int, Any], None], truncate: Callable[[int], None] | None = None
    ) -> None:
        self.function = function
        self.truncate = truncate

    def __repr__(self) -> str:
        return f"foreach_epoch({getattr(self.function, '__name__', self.function)})"

    def write(self, epoch: int, generation: int, rows: pa.Table | DataFrame) -> None:
        """Call the user's function."""
        self.function(epoch, generation, rows)

    @property
    def takes_back(self) -> bool:
        """Whether the user has a function for it."""
        return self.truncate is not None

    def truncate_after(self, epoch: int) -> None:
        """Call the user's function `truncate`. Raises SpecRefused without one."""
        if self.truncate is None:
            super().truncate_after(epoch)
        else:
            self.truncate(epoch)


def foreach_epoch(
    function: Callable[[int, int, Any], None], truncate: Callable[[int], None] | None = None
) -> ForeachEpoch:
    """Call a function for every epoch with fired rows. After a failure the call is repeated: at least once.

    Every run numbers its epochs from 0 on. Ferry does not know the destination of the function, so two runs or two sinks
    must not write to the same destination.

    Parameters:
        function: gets the number of the epoch, the driver's generation and a DataFrame. It is called until it returns, so a
            repeated call must have no effect. `ferry.Final` from the function stops the job.
        truncate: gets the number of an epoch when the job is restored to the end of that epoch. It must remove the rows of
            all later epochs, because their numbers are used again. It may be called repeatedly. None: such a restore is
            refused, unless it keeps the rows of sinks (`restoreSink: keep`).
    Returns: a sink.
    Raises: SpecRefused, if `function` or `truncate` cannot be called with these arguments.
    Example:
        >>> def store(epoch, generation, rows):
        ...     rows.write.mode("overwrite").json(f"/data/counts/{epoch}")
        >>> def forget(epoch):
        ...     for folder in pathlib.Path("/data/counts").iterdir():
        ...         if int(folder.name) > epoch:
        ...             shutil.rmtree(folder)
        >>> output = counts.sink(ferry.foreach_epoch(store, truncate=forget))
    """
    require_arguments("foreach_epoch: ", function, "epoch", "generation", "rows")
    if truncate is not None:
        require_arguments("foreach_epoch: truncate=", truncate, "epoch")
    return ForeachEpoch(function, truncate)
