"""Options that all generators have, and how one is compared with the reference."""

from itertools import pairwise
from typing import Any

import pyarrow as pa
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

quick = settings(
    max_examples=150,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)

ORDER: dict[str, st.SearchStrategy[Any]] = {
    "seed": st.sampled_from([0, 7, 2**63, 2**64 - 1]),
    "rate": st.sampled_from([1.0, 3.7, 999.0, 1000.0, 30_000.0, 1e6, 1.9e6]),
    "group": st.sampled_from([1, 2, 7, 50, 128, 953, 1906]),
    "delay_prob": st.sampled_from([0.0, 0.1, 0.5, 1.0]),
    "delay_ms": st.sampled_from([0, 1, 10, 3000]),
    "events": st.integers(0, 3000),
}
KEYS: dict[str, st.SearchStrategy[Any]] = {
    "keys": st.sampled_from(["nexmark", "uniform", "zipf", "pareto"]),
    "domain": st.sampled_from([1, 10, 1000]),
    "zipf_s": st.sampled_from([0.0, 0.2, 1.0, 2.0]),
    "pareto_alpha": st.sampled_from([0.5, 1.16]),
}


def assert_same(generator: Any, reference: dict[str, pa.Table], streams: list[str], cuts: list[int]) -> None:
    """The pieces between these arrival numbers, put together, are the reference's tables."""
    edges = sorted({0, generator.events, *(c % (generator.events + 1) for c in cuts)})
    for stream in streams:
        pieces = [generator.read(stream, low, high) for low, high in pairwise(edges)]
        table = pa.Table.from_batches(pieces, schema=generator.schema(stream))
        table.validate(full=True)
        assert table.schema.equals(reference[stream].schema)
        for name in table.column_names:
            assert table[name].equals(reference[stream][name]), (generator, stream, name)
