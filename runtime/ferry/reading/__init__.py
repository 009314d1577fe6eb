"""Checkpoints as users read them: the state of an operator as an Arrow table.

Imports contract, kernels, process, store and durable. Must never change a checkpoint: what it reads it pins, for as long as
it reads.
"""
