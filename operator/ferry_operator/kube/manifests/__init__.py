"""Pure: the objects that a job consists of, and what the installation gives to every job."""
