"""What two processes must agree on: names, operator descriptors, the routing table, messages, documents, limits, errors.

Imports nothing of ours, does no I/O and starts no thread. Everything here is a frozen value with a wire form
(msgpack of plain lists and maps), so that a change of a field is a change of the contract and fails its round-trip test.
"""
