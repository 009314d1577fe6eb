"""The timeline of a run: read, summarised, printed and drawn.

The package must never change a run.
"""
