"""Conditions and columns as Arrow expressions: the same records as a function of batches gives, and less that is read."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

import ferry
from ferry.api.expressions import Filter, Need, Select, planned
from ferry.contract.errors import SpecRefused

WORDS = pa.dictionary(pa.int32(), pa.string())
SCHEMA = pa.schema([("n", pa.int64()), ("m", pa.int64()), ("word", pa.string())])

rows = st.lists(
    st.tuples(*2 * [st.none() | st.integers(-3, 3)], st.none() | st.sampled_from(["view", "click", "x", ""])),
    max_size=40,
)

CONDITIONS: list[tuple[pc.Expression, Callable[[Any, Any, Any], bool | None]]] = [
    (pc.field("word") == "view", lambda n, m, w: None if w is None else w == "view"),
    (pc.field("word") != "view", lambda n, m, w: None if w is None else w != "view"),
    (pc.field("word") == "never", lambda n, m, w: False),
    (pc.field("word").is_null(), lambda n, m, w: w is None),
    (pc.is_in(pc.field("word"), pa.array(["view", "x", None])), lambda n, m, w: w in ("view", "x", None)),
    (pc.field("n") > 0, lambda n, m, w: None if n is None else n > 0),
    (
        (pc.field("n") > pc.field("m")) | (pc.field("word") == "x"),
        lambda n, m, w: (n is not None and m is not None and n > m) or w == "x",
    ),
    (pc.scalar(True), lambda n, m, w: True),
]


def batch_of(made: list[Any], dictionary: bool) -> pa.RecordBatch:
    columns = [pa.array([row[i] for row in made], SCHEMA.types[i]) for i in range(3)]
    if dictionary:
        columns[2] = columns[2].dictionary_encode().cast(WORDS)
    return pa.RecordBatch.from_arrays(columns, names=SCHEMA.names)


@given(rows, st.booleans(), st.lists(st.sampled_from(range(len(CONDITIONS))), min_size=1, max_size=3))
def test_a_filter_keeps_what_all_conditions_keep(made: list[Any], dictionary: bool, chosen: list[int]) -> None:
    bound = ferry.filter(*(CONDITIONS[i][0] for i in chosen)).bound(SCHEMA)
    kept = pickle.loads(pickle.dumps(bound))(batch_of(made, dictionary))
    expected = [row for row in made if all(CONDITIONS[i][1](*row) for i in chosen)]
    assert list(zip(*(column.to_pylist() for column in kept.columns))) == expected
    assert kept.schema.field("word").type == (WORDS if dictionary else pa.string())


def test_codes_of_a_dictionary_that_is_larger_than_its_records_and_has_nulls_and_repeats() -> None:
    words = pa.array(["a", None, "b", "a", *(str(n) for n in range(100))])
    column = pa.DictionaryArray.from_arrays(pa.array([0, 1, 2, 3, None, 5], pa.int32()), words)
    for repeats in (1, 40):
        batch = pa.RecordBatch.from_arrays([pa.concat_arrays([column] * repeats)], names=["word"])
        kept = ferry.filter(pc.field("word") == "a")(batch)
        assert kept.column(0).to_pylist() == ["a", "a"] * repeats
        assert len(ferry.filter(pc.field("word").is_null())(batch)) == 2 * repeats


def test_another_dictionary_is_judged_anew() -> None:
    bound = ferry.filter(pc.field("word") == "b", pc.field("word") != "c").bound(SCHEMA)
    for words in (["a", "b"], ["a", "b"], ["b", "c"], ["c", "b", "d"]):
        batch = batch_of([(1, 1, word) for word in words * 3], True)
        assert bound(batch).column("word").to_pylist() == ["b"] * 3


@given(rows, st.booleans())
def test_a_select_makes_columns(made: list[Any], dictionary: bool) -> None:
    batch = batch_of(made, dictionary)
    chosen = ferry.select("word", "n", sum=pc.field("n") + pc.field("m"), one=pc.scalar(1)).bound(SCHEMA)(batch)
    assert chosen.schema.names == ["word", "n", "sum", "one"]
    assert chosen.column(0).equals(batch.column(2)), "it is not touched"
    sums = [None if n is None or m is None else n + m for n, m, _ in made]
    assert (chosen.column(2).to_pylist(), chosen.column(3).to_pylist()) == (sums, [1] * len(made))


def test_what_is_needed() -> None:
    words = ferry.filter(pc.field("word") == "view", pc.field("n") > 0).bound(SCHEMA)
    sums = ferry.select("m", "word", sum=pc.field("n") + pc.field("m"), twice=pc.field("n") * 2).bound(SCHEMA)
    assert planned([words], Need(("m",)))[1:] == (("m", "word", "n"), ("word", "n"))
    steps, columns, dictionaries = planned([words, sums], Need(("twice",)))
    assert (columns, dictionaries) == (("n", "word"), ("word",)), "what reads n otherwise may know no dictionaries"
    assert steps[1](batch_of([(1, 2, "view")], False).select(["n"])).to_pydict() == {"twice": [2]}
    assert planned([sums, words.bound(pa.schema([("word", pa.string()), ("n", pa.int64())]))], Need(("sum",)))[2] == (
        "word",
    )
    assert planned([words], Need(("word",), plain=("word",)))[2] == ("n",)
    own = lambda batch: batch  # noqa: E731
    (first, kept), *rest = planned([own, words], Need(("m",)))
    assert first is own and rest == [None, ()]
    assert kept(batch_of([(1, 2, "view"), (1, 3, "x")], True)).to_pydict() == {"m": [2]}, "nobody wants the others"
    assert planned([sums, own], Need(("m",)))[1] == ("m", "word", "n"), "it makes no others"
    assert planned([words, own], Need(("m",)))[1:] == (None, ())


def test_a_source_of_files_gives_words_and_only_what_is_needed(tmp_path: Path) -> None:
    pq.write_table(pa.Table.from_batches([batch_of([(1, 2, "view"), (3, 4, None)], False)]), tmp_path / "a.parquet")
    source = ferry.parquet_files(tmp_path, finite=True)
    start = source.start()
    (split,) = source.plan(start, source.latest(start, 10), 1)
    (batch,) = source.encoded(["word", "n"]).read(split, ["word"])
    assert batch.schema == pa.schema([("word", WORDS)]) and batch.column(0).to_pylist() == ["view", None]
    assert source.schema() == SCHEMA


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda: ferry.filter(), "at least one condition"),
        (lambda: ferry.filter("n > 0"), "not an Arrow expression"),
        (lambda: ferry.select(), "at least one column"),
        (lambda: ferry.select("n", "n"), "'n' is named twice"),
        (lambda: ferry.select("n", n=pc.field("m")), "'n' is named twice"),
        (lambda: ferry.select(n=3), "not an Arrow expression"),
        (lambda: ferry.filter(pc.field("none") > 0).bound(SCHEMA), "does not fit columns"),
        (lambda: ferry.filter(pc.field("word") > 0).bound(SCHEMA), "does not fit columns"),
        (lambda: ferry.filter(pc.field("n") + 1).bound(SCHEMA), "not true or false"),
        (lambda: ferry.select("none").bound(SCHEMA), "does not fit columns"),
    ],
)
def test_mistakes_are_refused(make: Callable[[], Filter | Select], reason: str) -> None:
    with pytest.raises(SpecRefused, match=reason):
        make()
