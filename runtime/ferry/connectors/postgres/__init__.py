"""PostgreSQL tables, through `psycopg`."""
