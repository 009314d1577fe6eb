"""What only one command of `bench/` needs, in a folder of its name; `demo` holds what either of the two demos needs.

Must never be imported by another command: what two of them need goes to `bench/shared`.
"""
