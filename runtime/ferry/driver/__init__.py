"""The driver process: composes Spark (`ferry.spark`) with the coordinator (`ferry.coordinator`).

The only place that imports both. It executes orders of the coordinator (ingest, emit); it never decides about groups,
attempts or recovery.
"""
