"""The StreamJob document: its models, what a change of a field means, its status, and the settings of a run that it says.

Pure. It must never know where a job runs, nor what a job looks like while it does.
"""
