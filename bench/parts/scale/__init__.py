"""What `bench/scale.py` alone needs: one file for each of its parts."""
