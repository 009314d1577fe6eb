"""Tables of databases as a source: PostgreSQL and SQLite."""
