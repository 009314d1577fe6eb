"""The process beside a sidecar that offers Spark a place for tasks: it runs Spark's own worker and follows the driver.

It holds no state: when the driver changes, or Spark's worker dies, another one is started, and the sidecar does not
notice. Imports neither Spark nor the sidecar.
"""
