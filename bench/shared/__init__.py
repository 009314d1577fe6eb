"""What several commands of `bench/` need: the two systems as processes, what these cost, and how results are written.

Must know no single command: what only one needs goes to `bench/parts`.
"""
