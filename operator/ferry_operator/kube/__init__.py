"""The operator on Kubernetes: the same `decide` as `ferry run`, behind the API server.

Level-triggered: watches only put names of jobs on a queue; one reconcile looks at everything, decides, writes what it
intends into the job's status and then does it, with names that are always the same, so that it may end at any point and be
begun again by another process. Nothing is remembered between two of them that cannot be seen again in the cluster or at
the driver; what is kept in memory are clocks and caches.
"""
