"""Adapters between the decisions and a cluster: one port (`base`), processes of this machine (`local`).

They observe and act; they decide nothing. Of `ferry` they know the contract only.
"""
