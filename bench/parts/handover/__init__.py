"""Of `bench/handover.py`: what is done to Ferry and to Spark while they run, and the job whose state has a given size."""
