"""The outside: the API server behind a port, the Lease, names of objects, and the deletion of a run's Redis entries.

`client` alone imports the Kubernetes client. This room must never decide.
"""
