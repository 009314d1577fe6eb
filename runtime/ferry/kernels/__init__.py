"""Functions on arrays, compiled with numba, and the Arrow schemas they fill.

Does no I/O, starts no thread, keeps state between calls only in arrays of the caller. Every file is
self-contained: a compiled function is never imported from another file, because numba's cache does not notice that the
other file changed.
"""
