"""Each mechanism between a process and its machine, in one place: atomic file replacement, ends with a parent, HTTP
servers.

Mechanisms only. Knows the contract and nothing of jobs; must never hold a secret or decide when to act.
"""
