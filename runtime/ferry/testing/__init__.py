"""Jobs from Python: a test of a pipeline in this process, and a run on this machine with a handle."""
