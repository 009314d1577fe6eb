"""Pure: what users read: conditions, status and events. It must never be read by what decides."""
