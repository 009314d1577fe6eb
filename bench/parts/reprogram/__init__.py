"""Parts of `bench/reprogram.py`: the program of a running job changes, in Ferry, Flink and Spark."""
