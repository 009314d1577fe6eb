"""Pure: what the objects of the API server and the answers of a driver mean. It must never change or ask anything."""
