"""The driver's side of the protocol: which step, which attempt, which table, and who takes part.

`machine` has the one entrance; the order of the parts is drawn at its head. Must never know instances from within: what
it knows of one is what its messages say.
"""

from ferry.protocol.coordinator.io import (
    Close,
    Connected,
    CoordinatorSettings,
    Effect,
    Emit,
    EpochBegun,
    EpochEnded,
    Event,
    FiredRows,
    Halt,
    Ingested,
    IngestFailed,
    Journal,
    Journaled,
    JournalReachable,
    JournalRefused,
    Lost,
    Note,
    Phase,
    ProcessEnded,
    Publish,
    Published,
    ReadFailed,
    Ready,
    StartIngest,
    TakeCheckpoint,
)
from ferry.protocol.coordinator.machine import Coordinator
from ferry.protocol.io import Send, Tick

__all__ = [
    "Close",
    "Connected",
    "Coordinator",
    "CoordinatorSettings",
    "Effect",
    "Emit",
    "EpochBegun",
    "EpochEnded",
    "Event",
    "FiredRows",
    "Halt",
    "IngestFailed",
    "Ingested",
    "Journal",
    "JournalReachable",
    "JournalRefused",
    "Journaled",
    "Lost",
    "Note",
    "Phase",
    "ProcessEnded",
    "Publish",
    "Published",
    "ReadFailed",
    "Ready",
    "Send",
    "StartIngest",
    "TakeCheckpoint",
    "Tick",
]
