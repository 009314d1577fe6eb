"""Jobs from Python: a pipeline tried without a cluster, and a run of this machine with a handle."""
