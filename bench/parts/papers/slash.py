"""Slash (Del Monte et al., SIGMOD 2022): records a second without repartitioning."""

from __future__ import annotations

from bench.parts.papers.rows import Row, thrown, thrown_with

ROWS = (
    Row(
        "slash-9a",
        "Slash, figure 9a (YSB)",
        "Records a second",
        "12 times its own repartitioning, 25 times Flink, on 16 machines",
        "25",
        thrown_with("ysb"),
        thrown("ysb"),
    ),
    Row(
        "slash-9b",
        "Slash, figure 9b (CM)",
        "Records a second",
        "104 times Flink, on 16 machines",
        "104",
        thrown_with("cm"),
        thrown("cm"),
    ),
    Row(
        "slash-9-ro",
        "Slash, figure 11 (RO)",
        "Records a second",
        "11.6 times LightSaber, on 16 machines",
        "11.6",
        thrown_with("ro"),
        thrown("ro"),
    ),
)
