"""What is decided for every job wherever it runs, and the one client of a driver.

`decide`, `restarts` and `commands` are pure. It must never know whether a worker is a process or a pod.
"""
