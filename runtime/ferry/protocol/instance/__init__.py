"""An instance's side of the protocol: what it computes, logs, applies and learns.

`machine` has the one entrance; the order of the parts is drawn at its head. Must never know the coordinator from within:
what it knows of the driver is what its messages say.
"""
