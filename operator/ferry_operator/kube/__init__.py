"""The operator on Kubernetes: the same `decide` as `ferry run`, behind the API server.

Level-triggered: watches only put names of jobs on a queue; one pass looks at everything, decides, writes what it intends
into the job's status and then does it, with names that are always the same, so that it may end at any point and be
begun again by another process. Nothing is remembered between two passes that cannot be seen again in the cluster or at
the driver; what is kept in memory are clocks and caches.

| file | |
|---|---|
| names, release | words of the cluster: labels, annotations, names; what the installation gives to every job |
| facts, life, inforce, turnover, observe, plan | pure: API objects in, steps out |
| pods, parts, objects | pure: manifests |
| conditions, status, events | pure: what users read |
| port, api, driver_link, redis_line | the outside: API server, driver, Redis |
| store, queue, cluster, reconcile | what is known, what is next, how a step is done, one pass |
| lease, watch, leader, metrics, health, __main__ | one leader at a time, kopf, the process |
"""
