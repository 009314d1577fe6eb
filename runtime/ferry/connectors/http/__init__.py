"""HTTP endpoints that take rows as JSON."""
