"""UniMiCo Q1: pairs of readings of S and T at one place, less than 10 s apart.

Output: ts, expires_at, s_seq, t_seq, l, s_m, t_m.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

import ferry
from ferry_workloads.jobs import arguments
from ferry_workloads.unimico import UnimicoGenerator, UnimicoSplits


def sources(spark: Any, args: dict[str, Any]) -> dict[str, Any]:
    """Both streams of UniMiCo."""
    made = arguments.generator(UnimicoGenerator, args)
    return {"s": arguments.paced(UnimicoSplits(made, "s"), args), "t": arguments.paced(UnimicoSplits(made, "t"), args)}


def matched(name: str, streams: Any, args: dict[str, Any]) -> Any:
    """The pairs, from an operator of this name. A pair has the time of its later and expires with its earlier reading."""
    delay = arguments.delay(args, arguments.generator(UnimicoGenerator, args))
    size = arguments.duration(args, "window_ms", 10_000)
    s, t = (streams[side].event_time("ts", delay=delay).key_by("l") for side in ("s", "t"))
    left = {"s_seq": "seq", "s_ts": "ts", "l": "l", "s_m": "m"}
    right = {"t_seq": "seq", "t_ts": "ts", "t_m": "m"}

    def timed(rows: pa.RecordBatch) -> pa.RecordBatch:
        both = [rows.column("s_ts"), rows.column("t_ts")]
        made = rows.append_column("ts", pc.max_element_wise(*both))
        return made.append_column("expires_at", pc.add(pc.min_element_wise(*both), size // arguments.MS)).drop_columns(
            ["s_ts", "t_ts"]
        )

    return s.join(name, t, left, right, within=(arguments.MS - size, size)).map_batches(timed)


def pipeline(streams: Any, args: dict[str, Any]) -> Any:
    """Emit each pair at the arrival of its later reading."""
    return matched("uq1_pairs", streams, args).sink(ferry.parquet("uq1"))
