"""Bytes in motion between the processes of a job: instances, and the driver.

One contract (`base`), and one channel (`flow`: credits and lanes, over the frames of `frames`). A transport moves its
bytes: `memory` for tests in one process, `tcp`, or `rdma` for jobs that ask for it (docs/rdma.md). All of them pass the
same contract tests.
same contract tests.

It never looks inside a head or a body, never waits for a handler, never retries a message: a broken connection is
reported once and the protocol above decides which messages to send again.
"""
