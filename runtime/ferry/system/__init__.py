"""What every process does with its machine, each thing in one place: files replaced whole, ends with a parent, HTTP served.

Mechanisms only. Knows the contract and nothing of jobs; must never hold a secret or decide when something is done.
"""
