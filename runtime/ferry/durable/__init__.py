"""Durable checkpoints in a store: their location, the files of state, and the catalog of manifests that says which
count.

Must never decide when a checkpoint is taken or which one a job begins from, and never replaces a file: a file has one
content for ever, and a manifest is written when all files that it names are in the store.
"""
