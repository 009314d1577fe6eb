"""Measurements and demos: every file of this folder is a command, and `bench/README.md` says what each one measures.

What only one command needs is in `parts/`, in a folder of its name; what several need is in `shared/`. Nothing of Ferry
may import anything from here.
"""
