"""The operator's process: one leader at a time, kopf's watches, the queue, its health. It must never look into a job."""
