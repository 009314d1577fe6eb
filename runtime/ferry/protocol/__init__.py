"""Decisions as pure state machines: event in, effects out.

    driver                                    instance
    coordinator/                              instance/
    Coordinator.step(event) -> effects        Instance.step(event) -> effects
        |  epochs: ingest, prepare, commit, read    |  prepare, replicate, apply
        |  recovery: ask, adopt, admit              |  learn: fetch, chunks, warm
        '- groups: promote, warm, switch over, clean        '- fences: generation, version, attempt

May import `ferry.contract` only. Holds no clock, socket, thread, randomness or logging, and no bytes: cores hold names
and positions, the processes hold the data and execute the effects in order. Time is an integer of milliseconds that
comes in with `Tick`.

The invariants are in docs/design.md, section 4; tests/sim checks them after every step.
"""
