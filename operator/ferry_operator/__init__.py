"""Control plane: what a job should be, where its state should live, and the adapters that make it so.

Of `ferry` it imports the contract only. What decides is pure (`spec`, `planner`); what touches a cluster is in `cluster`.
"""
