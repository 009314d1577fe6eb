"""The document's definition for the API server: schema, rules between fields, and the page of all fields.

Generated from `job` alone, so each field has one source of truth. A running operator must never need this room.
"""
