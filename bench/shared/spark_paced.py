"""Paced streams of Ferry's generators as a Python data source of Spark: Arrow batches, offsets that follow the clock.

A batch has what is due when it begins. Spark's checkpoint says which arrivals each batch had, and when it had ended.
"""

from __future__ import annotations
