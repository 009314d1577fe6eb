"""The language of pipelines: streams, keys, windows, aggregates, joins, processes and expressions.

A pipeline's declaration is a value (`pipeline.Build`): nothing runs here. Must never import PySpark: `spark/` supplies the
schemas of DataFrames.
"""
