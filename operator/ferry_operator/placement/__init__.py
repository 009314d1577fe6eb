"""The placement of the copies of each virtual node: balanced by memory and load, with few moves.

Pure and deterministic. It must never know of pods, processes or drivers.
"""
