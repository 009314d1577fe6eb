"""Delta Lake tables, through `deltalake`."""
