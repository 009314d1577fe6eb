"""The StreamJob document: its models, the effect of a change of a field, the status, and the settings of a run.

Pure. It must never know where a job runs, nor how a running job looks.
"""
