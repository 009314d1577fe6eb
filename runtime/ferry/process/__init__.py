"""Processes: functions over all touched keys of an instance and epoch, with state by key and with timers.

Pure: what an epoch has goes in, what it changes comes out. Who keeps the state (an instance, or a dictionary in a test)
calls `ferry.process.rounds.run` and applies the changes.
"""
