"""Functions on arrays, compiled with numba, and the Arrow schemas they fill.

Does no I/O, starts no thread, keeps no state between calls but in arrays that the caller owns. Every file is
self-contained: a compiled function is never imported from another file, because numba's cache does not notice that the
other file changed.
"""
