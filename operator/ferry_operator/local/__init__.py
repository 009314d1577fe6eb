"""A job on this machine: `ferry run`, the supervisor that keeps its processes, and what other terminals ask of it.

It decides nothing that `control` decides, and must never import Kubernetes.
"""
