"""The outside: the API server behind a port, the lease, the names of things, and Redis where a job's entries are removed.

`client` alone imports the client of Kubernetes. It must never decide.
"""
