"""Parts of `bench/reconfigure.py`: one act in the middle of an open loop, of Ferry and of Flink."""
