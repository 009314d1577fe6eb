"""Durable checkpoints in a store: where they lie, the files of state, and the shelf of manifests that says which count.

Imports contract, kernels and system. Must never decide when a checkpoint is taken or which one a job begins from, and never
replaces what is there: a file has one content for ever, and a manifest is written when all that it names is in the store.
"""
