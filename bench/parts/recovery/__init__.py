"""Of `bench/recovery.py`: what is lost of Ferry, Spark and Flink, and what each does until its output goes on."""
