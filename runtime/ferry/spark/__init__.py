"""Ferry inside Spark: compiles a pipeline to DataFrames and tasks, plans the input of an epoch, and emits its rows.

Must never decide anything about epochs, terms or groups. Only `private.py` uses private parts of Spark.
"""
