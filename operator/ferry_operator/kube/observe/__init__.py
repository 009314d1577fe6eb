"""Pure: interprets objects of the API server and answers of a driver. It must never change or request anything."""
