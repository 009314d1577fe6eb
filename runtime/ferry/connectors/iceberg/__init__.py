"""Iceberg tables, through `pyiceberg`."""
