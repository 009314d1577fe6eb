"""Sources and sinks: one folder per system, with its source and its sink.

`splits.Splits` is the interface of sources, `sink.Sink` is the interface of sinks. Must never import PySpark: only a sink
sees a DataFrame, as an argument.
"""
