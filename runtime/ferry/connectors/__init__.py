"""Sources and sinks: one folder a system, its source and its sink together, and the ports that all of them keep.

`splits.Splits` is the port of a source, `sink.Sink` that of a sink. Must never import PySpark: a DataFrame only comes in as
the argument of a sink.
"""
