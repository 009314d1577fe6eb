"""The process beside a sidecar that gives tasks a place: it runs an executor of Spark and follows the driver.

It holds no state: when the driver changes, or the executor dies, a new executor is started, and the sidecar does not
notice.
"""
