"""`python -m ferry_operator.cli` is `ferry` without an installation."""

from __future__ import annotations

from ferry_operator.cli.main import main

main()
