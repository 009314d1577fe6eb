"""NEXMark, YSB and the other jobs of the papers, written against what any user's pipeline may use.

The generators make any range of arrivals on its own, inside the tasks, equal to the reference under tests/oracle.
Imports kernels and the public side of ferry.spark. The room must never know of the coordinator or the sidecars.
"""
