"""Control rows: rows without a source, which carry facts about an epoch from the driver to tasks."""

TICK = "tick"
"""An epoch without records, requested by the coordinator."""

FLUSH = "flush"
"""All sources are finite and have ended: all windows and timers fire."""

FLOWS = "flows "
"""Prefix of a row with (source, its flows) as JSON."""
