"""The code of Spark's Python workers: it reads splits, and sends fragments to the instances beside it.

Must never import the driver's side of `ferry.spark`, nor decide anything about epochs, terms or groups.
"""
