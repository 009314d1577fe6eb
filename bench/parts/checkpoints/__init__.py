"""Of `bench/checkpoints.py`: what checkpoints have written beside what has changed, and how that is shown."""
