"""The language of pipelines: streams, keys, windows, aggregates, joins, processes and expressions.

What a pipeline declares is a value (`pipeline.Build`): nothing runs here. Must never import PySpark: `spark/` brings the
schemas of DataFrames in.
"""
