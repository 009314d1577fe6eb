"""The guest inside Spark: a pipeline compiled for DataFrames and tasks, the input of an epoch, and the way of its rows.

Must never decide anything about epochs, terms or groups. Private parts of Spark are used in `private.py` alone.
"""
