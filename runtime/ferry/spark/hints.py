"""What to write in place of a method that streams do not have, for people who know it from elsewhere."""

from __future__ import annotations

import difflib

INSTEAD = {
    **dict.fromkeys(("group_by", "groupBy", "groupby", "keyBy", "partition_by", "by"), '.key_by("column")'),
    **dict.fromkeys(("filter", "where"), ".map_batches(ferry.filter(condition))"),
    **dict.fromkeys(("select", "with_column", "withColumn", "assign", "rename"), ".map_batches(ferry.select(...))"),
    **dict.fromkeys(
        ("map", "flat_map", "flatMap", "apply", "foreach"), ".map_batches(function), which gets record batches"
    ),
    **dict.fromkeys(("withWatermark", "watermark", "assign_timestamps"), '.event_time("column", delay="10s")'),
    **dict.fromkeys(
        ("to", "write", "writeStream", "write_to", "save", "output", "sink_to"), ".sink(ferry.parquet(...))"
    ),
    **dict.fromkeys(("print", "show", "display"), ".sink(ferry.console())"),
    **dict.fromkeys(("agg", "reduce", "count", "sum"), '.aggregate("name", total=ferry.sum("column"))'),
    **dict.fromkeys(("window", "aggregate", "process", "join"), '.key_by("column") before it'),
}


def absent(thing: object, name: str) -> AttributeError:
    """The error for an attribute that an object of the language of pipelines does not have."""
    own = [one for one in dir(type(thing)) if not one.startswith("_")]
    close = difflib.get_close_matches(name, own, 1)
    hint = f"did you mean .{close[0]}(...)?" if close else f"write {INSTEAD[name]}" if name in INSTEAD else ""
    return AttributeError(
        f"{type(thing).__name__} has no {name!r}; {hint or 'it has ' + ', '.join(own)}", name=name, obj=None
    )
