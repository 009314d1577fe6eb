"""Decisions about a job, the same on a laptop and on Kubernetes, and the HTTP client of a driver.

`decide`, `restarts` and `commands` are pure. The room must never know whether a worker is a process or a pod.
"""
