"""The operator on Kubernetes: the same `decide` as `ferry run`, behind the API server.

Level-triggered: watches only put names of jobs on a queue. A reconcile observes the job, decides, writes its intended
steps into the job's status, and then acts. Names of objects are deterministic, so a reconcile may end at any point, and
another process may repeat it. Memory holds only clocks and caches: all other state is in the cluster or at the driver.
"""
