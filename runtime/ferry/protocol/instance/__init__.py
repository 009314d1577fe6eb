"""An instance's side of the protocol: what it computes, logs, applies and learns.

`machine` has the only entrance and draws the order of the parts at its head. Must never know the inside of the
coordinator, only its messages.
"""
