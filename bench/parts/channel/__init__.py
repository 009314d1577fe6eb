"""Of `bench/channel.py`: what is measured (`plan`), by two processes (`peer`, `ends`), beside what (`rivals`), `report`.

`peer`, `ends` and `rivals` also run in guests: they may import the standard library and `ferry.channel` only.
"""
