"""Bytes in motion between the processes of a job: instances, and the driver.

One contract (`base`), several carriers: `memory` for tests in one process, `tcp`, and `rdma` for jobs
that ask for it (docs/rdma.md). All of them run the same flow control (`flow`) over the same frames (`frames`), and pass the
same contract tests.

May import the contract. It never looks inside a head or a body, never waits for a handler, never
retries a message: a connection that broke is reported once and the protocol above decides what to send again.
"""
