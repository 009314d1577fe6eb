"""Names of the environment variables that whoever starts a process of a job sets, and the process reads."""

from __future__ import annotations

HOST = "FERRY_HOST"
"""All: the address to listen on and to be reached at; tasks reach instances over TCP then."""

PORTS = "FERRY_PORTS"
"""All: FIXED: those of `contract.ports`; not set, or '0': any free ones."""

CONTROL_PORT = "FERRY_CONTROL_PORT"
"""Driver: of the control endpoint; 0: any free one."""

MASTER_PORT = "FERRY_MASTER_PORT"
"""Driver: of Spark's master; 0: any free one."""

SPARK = "FERRY_SPARK"
"""Driver: STANDALONE: Spark's workers are other processes, on other hosts; not set: task slots in the driver."""

WORKER = "FERRY_WORKER"
"""Tasks: the worker that they run beside: its instances are the helpers nearby. Executors tell the driver, too."""

METRICS_TOKEN = "FERRY_METRICS_TOKEN"
"""Driver, sidecar, operator: who shows it may read the metrics; not set: nobody may."""

METRICS_PORT = "FERRY_METRICS_PORT"
"""Driver, sidecar: of the metrics; not set: that of the fixed ones, else any free one."""

PLACE = "FERRY_PLACE"
"""Sidecar: where it was started (a pod): a start elsewhere takes its worker away for good."""

JOURNAL = "FERRY_JOURNAL"
"""Driver: NAMESPACE/NAME of the object in the API server that holds the journal; not set: Redis holds it."""

BEGUN = "FERRY_BEGUN"
"""Driver: 'yes': the job has finished an epoch, so that it has a journal somewhere."""

STANDBY = "FERRY_STANDBY"
"""Driver: 'yes': be ready, and take the job over when a line on standard input says so."""

PROGRAM = "FERRY_PROGRAM"
"""Tasks on one machine: the folder with the copy of the program that the run was started with."""

LIFE = "FERRY_LIFE"
"""Driver, from what ran in its process before: the life that workers know. It is that of Spark, which goes on."""

GATEWAY_PORT, GATEWAY_SECRET = "PYSPARK_GATEWAY_PORT", "PYSPARK_GATEWAY_SECRET"
"""Driver, from what ran in its process before: where Spark's JVM listens, which goes on, and what it lets in. PySpark's own
names."""

API_HOST, API_PORT = "KUBERNETES_SERVICE_HOST", "KUBERNETES_SERVICE_PORT"
"""All pods, from their kubelet: the API server."""

INSTANCES_FILE = "FERRY_INSTANCES_FILE"
"""Sidecar: holds the number of wanted instances, instead of `workers/K/instances`."""

FIXED = "fixed"
STANDALONE = "standalone"
