"""What two processes must agree on: names, operator descriptors, the routing table, messages, documents, limits, errors.

Does no I/O and starts no thread. Every value is frozen and has a wire form (msgpack of plain lists and maps): a change
of a field changes the contract and fails its round-trip test.
"""
