"""Parts of `bench/strategies.py`."""
