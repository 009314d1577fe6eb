"""Formats of records that several systems share: JSON, CSV, Parquet."""
