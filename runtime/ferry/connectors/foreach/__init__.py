"""A function of the user's, called for each epoch."""
