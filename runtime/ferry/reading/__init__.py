"""Reading and writing of checkpoints: the state of an operator as an Arrow table, and back.

Imports contract, kernels, process, store and durable. Must never change a checkpoint: a read pins the checkpoint, and a
write creates a new one.
"""
