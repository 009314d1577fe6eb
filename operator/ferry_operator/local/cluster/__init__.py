"""The processes of a run on this machine: the supervisor observes, starts and ends them through this package.

It must never decide.
"""
