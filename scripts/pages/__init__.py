"""The parts of the site that are made from the product: error texts, commands, names of `import ferry`, metrics.

MkDocs builds the site from `docs/` (`make docs`); `hooks` puts these parts into pages that have a marker for them.
"""
