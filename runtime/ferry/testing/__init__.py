"""Pipelines tried without a cluster, for the tests of jobs."""
