"""The port through which a supervisor sees and changes a cluster, and processes of this machine behind it.

Adapters observe and act; they must never decide.
"""
