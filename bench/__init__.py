"""Measurements and demos: every file of this folder is a command, and `bench/README.md` says what each one measures.

Code of one command is in `parts/`, in a folder with the name of the command; code of several commands is in `shared/`.
Ferry's packages must not import `bench`.
"""
