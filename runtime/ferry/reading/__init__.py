"""Checkpoints as users read and make them: the state of an operator as an Arrow table, and back.

Imports contract, kernels, process, store and durable. Must never change a checkpoint: what it reads it pins, for as long as
it reads, and what it makes is another one.
"""
