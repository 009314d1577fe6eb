"""The `ferry` command and `kubectl streamjob`: arguments in, calls, tables out. Nothing here decides.

The client of Kubernetes is imported when a cluster is meant, and not before.
"""
