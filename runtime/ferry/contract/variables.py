"""Names of the environment variables with which a parent passes settings to a process of a job."""

from __future__ import annotations

HOST = "FERRY_HOST"
"""All: the address to listen on and to be reached at; tasks then reach instances over TCP."""

PORTS = "FERRY_PORTS"
"""All: FIXED: the ports of `contract.ports`; not set, or '0': any free ones."""

CONTROL_PORT = "FERRY_CONTROL_PORT"
"""Driver: port of the control endpoint; 0: any free one."""

MASTER_PORT = "FERRY_MASTER_PORT"
"""Driver of release 0.1: port of Spark's master."""

SPARK = "FERRY_SPARK"
"""Driver: EXECUTORS: tasks run in executors, on other hosts; not set: task slots in the driver."""

WORKER = "FERRY_WORKER"
"""Tasks: the worker on the same host: its instances are the helpers nearby."""

METRICS_TOKEN = "FERRY_METRICS_TOKEN"
"""Driver, sidecar, operator: the token that may read the metrics; not set: no request may."""

METRICS_PORT = "FERRY_METRICS_PORT"
"""Driver, sidecar: port of the metrics; not set: the fixed one, else any free one."""

PLACE = "FERRY_PLACE"
"""Sidecar: where it was started (a pod): a start elsewhere takes its worker over for good."""

JOURNAL = "FERRY_JOURNAL"
"""Driver: NAMESPACE/NAME of the object in the API server that holds the journal; not set: Redis holds it."""

BEGUN = "FERRY_BEGUN"
"""Driver: 'yes': the job has finished an epoch, so a journal exists."""

STANDBY = "FERRY_STANDBY"
"""Driver: 'yes': stand by, and take the job over at a line on standard input."""

PROGRAM = "FERRY_PROGRAM"
"""Tasks on one machine: the folder with the run's copy of the program."""

LIFE = "FERRY_LIFE"
"""Driver, from its predecessor in the same process: the life that workers know, which is the life of its Spark."""

GATEWAY_PORT, GATEWAY_SECRET = "PYSPARK_GATEWAY_PORT", "PYSPARK_GATEWAY_SECRET"
"""Driver, from its predecessor in the same process: port and secret of Spark's JVM, which goes on. The names are
PySpark's."""

API_HOST, API_PORT = "KUBERNETES_SERVICE_HOST", "KUBERNETES_SERVICE_PORT"
"""All pods, from their kubelet: the API server."""

INSTANCES_FILE = "FERRY_INSTANCES_FILE"
"""Sidecar: file with the number of wanted instances, instead of `workers/K/instances`."""

FIXED = "fixed"
EXECUTORS = "standalone"
"""As release 0.1 spells it: an operator of this release starts drivers of that one, and the other way round."""
