"""Jobs on a cluster, through the API server with the user's own rights.

A job is its StreamJob with what the operator wrote into its status, its events, pods and logs. Nothing here talks to a
driver, and Secrets must never be read.
"""
