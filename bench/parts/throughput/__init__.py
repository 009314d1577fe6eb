"""Of `bench/throughput.py`: the files that both systems read, Ferry's queries over them, and the report."""
