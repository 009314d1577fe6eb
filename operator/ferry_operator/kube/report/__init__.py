"""Pure: conditions, status and events for users. Decisions must never read it."""
