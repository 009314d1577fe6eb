"""Jobs on a cluster, through the API server with the user's own rights.

A job is its StreamJob with its status, events, pods and logs. The package must never send a request to a driver, nor read
Secrets.
"""
