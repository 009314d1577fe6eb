"""Rows without a source, in which the driver tells tasks something about an epoch."""

TICK = "tick"
"""An epoch without records, which the coordinator asks for."""

FLUSH = "flush"
"""Every source is finite and has ended: everything fires."""

FLOWS = "flows "
"""The row goes on with (source, its flows) as JSON."""
