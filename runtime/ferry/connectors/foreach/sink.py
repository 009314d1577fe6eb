"""A function of the user's that gets the rows of each epoch."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from ferry.connectors.sink import Sink
from ferry.connectors.users import require_arguments

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


class ForeachEpoch(Sink):
    """Calls the user's function with (epoch, generation, DataFrame); it must be idempotent by epoch."""

    needs_frame = True

    def __init__(
        self, function: Callable[[int, int, Any], None], truncate: Callable[[int], None] | None = None
    ) -> None:
        self.function = function
        self.truncate = truncate

    def __repr__(self) -> str:
        return f"foreach_epoch({getattr(self.function, '__name__', self.function)})"

    def write(self, epoch: int, generation: int, rows: pa.Table | DataFrame) -> None:
        """Call it."""
        self.function(epoch, generation, rows)

    def truncate_after(self, epoch: int) -> None:
        """Call the function for that; raises SpecRefused when there is none."""
        if self.truncate is None:
            super().truncate_after(epoch)
        else:
            self.truncate(epoch)


def foreach_epoch(
    function: Callable[[int, int, Any], None], truncate: Callable[[int], None] | None = None
) -> ForeachEpoch:
    """Call a function once for every epoch that fired rows, and again after failures: at least once.

    Every run numbers its epochs from 0 on, and Ferry cannot know what the function writes to: let no two runs, nor two
    sinks, write to one place.

    Parameters:
        function: gets the epoch's number, the driver's generation, and a DataFrame. It is called again until it returns,
            so it must do nothing the second time; one that raises `ferry.Final` stops the job.
        truncate: gets the number of an epoch when the job is restored as of its end, and removes what was stored for
            later ones, for these numbers come again. It may be called again. Without it such a restore is refused, unless
            it leaves what sinks have (`restoreSink: keep`).
    Returns: a sink.
    Raises: SpecRefused, if one of them cannot be called.
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
