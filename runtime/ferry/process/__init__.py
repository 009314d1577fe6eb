"""Processes: functions over all touched keys of an instance and epoch, with state by key and with timers.

Pure: an epoch's input goes in, its changes come out. The owner of the state (an instance, or a dictionary in a test)
calls `ferry.process.rounds.run` and applies the changes.
"""
