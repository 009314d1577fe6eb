"""The control plane: what a job should be, where its state should live, and what makes it so, here and on Kubernetes.

Of `ferry` it imports the contract and `ferry.system` only. ARCHITECTURE.md, beside this package, has the rooms and one
reconcile in steps.
"""
