"""Parts of `bench/latency.py`."""
