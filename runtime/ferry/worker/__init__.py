"""The process beside a sidecar that gives tasks a place: it runs Spark's own worker and follows the driver.

It holds no state: when the driver changes, or Spark's worker dies, a new worker is started, and the sidecar does not
notice.
"""
