"""Database tables as a source: PostgreSQL and SQLite."""
