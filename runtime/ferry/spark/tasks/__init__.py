"""The code of Spark's Python workers: reads splits, and sends fragments to the instances of the worker.

Must never import the driver's side of `ferry.spark`, nor decide anything about epochs, terms or groups.
"""
