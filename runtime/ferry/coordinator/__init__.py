"""The driver's side of the running job: it executes the effects of `ferry.protocol.coordinator`.

Threads: one loop (events in, effects out), the channel's, one for the journal, one that looks for instances, one HTTP
server. It never touches data or Spark: `ferry.driver` and `ferry.spark` do.
"""
