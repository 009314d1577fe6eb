"""The operator's process: leader election, kopf's watches, the work queue, health. It must never interpret a job."""
