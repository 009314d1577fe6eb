"""A user's function that is called periodically for new rows."""
