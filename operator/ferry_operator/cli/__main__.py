"""`python -m ferry_operator.cli` is `ferry`, where nothing is installed."""

from __future__ import annotations

from ferry_operator.cli.main import main

main()
