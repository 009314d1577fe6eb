"""A function of the user's that is asked again and again for new rows."""
