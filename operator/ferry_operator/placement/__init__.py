"""Where the copies of each virtual node should be: balanced by memory and load, with as few moves as that takes.

Pure, and the same answer for the same question. It must never know of pods, processes or drivers.
"""
