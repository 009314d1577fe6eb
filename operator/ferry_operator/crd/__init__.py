"""The document's definition for the API server: schema, rules between fields, and the page of all fields.

Generated from `job` alone, so that there is one source of truth for a field. It must never be needed by a running operator.
"""
