"""The driver's side of the protocol: which step, which attempt, which table, and who takes part.

`machine` has the one entrance; the order of the parts is drawn at its head. Must never know instances from within: what
it knows of one is what its messages say.
"""
