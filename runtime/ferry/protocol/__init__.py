"""Decisions as pure state machines: event in, effects out.

    driver                                    instance
    Coordinator.step(event) -> effects        Instance.step(event) -> effects
        |  epochs: ingest, prepare, commit, read    |  prepare, replicate, put
        |  recovery: ask, adopt, admit              |  learn: fetch, chunks, warm
        '- groups: promote, warm, switch over, clean        '- fences: generation, version, attempt

May import `ferry.contract` only. Holds no clock, socket, thread, randomness or logging, and no bytes: cores hold names
and positions, the processes hold the data and execute the effects in order. Time is an integer of milliseconds that
comes in with `Tick`.

Invariants (checked after every step of the simulation in tests/sim): one leader per virtual node and
term; one committed attempt per step; an in-sync member is at most one step behind its leader; the watermark never goes
back; rows are read only when every in-sync member has committed them.
"""
