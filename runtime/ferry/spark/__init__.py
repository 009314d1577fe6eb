"""The guest inside Spark: job, ingest task, emit split, sources and sinks.

Imports contract, kernels, environment and system. Decides nothing about epochs, terms or groups: no protocol, store or
channel here.
"""
