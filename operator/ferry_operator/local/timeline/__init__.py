"""What happened in a run and when: read from its timeline, summed up, printed and drawn.

It must never change anything.
"""
