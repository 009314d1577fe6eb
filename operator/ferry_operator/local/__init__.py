"""A job on this machine: `ferry run`, the supervisor of its processes, and the endpoint for other terminals.

Decisions are in `control`. The room must never import Kubernetes.
"""
