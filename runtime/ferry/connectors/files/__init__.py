"""Files in folders: Parquet, JSON lines and CSV as sources, Parquet as a sink."""
