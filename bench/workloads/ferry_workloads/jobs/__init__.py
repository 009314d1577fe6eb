"""The papers' queries as Ferry jobs, written against the public API; each module is one job.

Arguments are the generator's (see ferry_workloads) and the query's: `window_ms`, `slide_ms`, `gap_ms`, `min_ms`,
`scale` (divides the paper's windows), `delay_ms` (the watermark's delay; default: the generator's disorder bound),
`late_ms` (how late a delayed record of the generator arrives, 3000 by default), `parallelism` and `switch_seq`.
"""
