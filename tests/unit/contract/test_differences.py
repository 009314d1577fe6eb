"""What of two programs is the same state, and how a difference is named."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from ferry.contract.descriptors import GLOBAL, Aggregate, OperatorDescriptor, ProcessShape, Side, Window
from ferry.contract.differences import differences

SALES = OperatorDescriptor(
    "sales", 0, "aggregate", (("shop", "string"),), Window(10_000, 10_000),
    (Aggregate("orders", "count"), Aggregate("cents", "sum", "cents")),
)  # fmt: skip
JOIN = OperatorDescriptor(
    "paid", 1, "join", (("id", "int"),), GLOBAL, left=Side((("a", "a", "int64"),)), right=Side((("b", "b", "int64"),))
)


def arguments(digest: str, stem: str) -> str:
    """Of an operator with another class among its arguments."""
    return json.dumps({"limit": 3, "of": {"made_of": f"ferry_pipeline_{stem}_{digest}:Rate.Inner", "arguments": {}}})


def shape(digest: str = "0123456789ab", stem: str = "sales", **changes: object) -> ProcessShape:
    one = ProcessShape(
        f"ferry_pipeline_{stem}_{digest}:Fraud",
        f'{{"limit": 3, "of": {{"made_of": "ferry_pipeline_{stem}_{digest}:Rate.Inner", "arguments": {{}}}}}}',
        (("cents",),), ("in",), "out", (("seen", "schema", None),),
    )  # fmt: skip
    return replace(one, **changes)  # type: ignore[arg-type]


def process(given: ProcessShape) -> OperatorDescriptor:
    return OperatorDescriptor("fraud", 0, "process", (("id", "int"),), Window(1, 1), process=given)


@pytest.mark.parametrize("stem", ["sales", "my-sales.v2_ab", "verkäufe", "売上_ü", "\U0001f4b6", "ä_0123456789ab"])
def test_a_comment_in_the_file_of_a_class_is_no_other_operator(stem: str) -> None:
    """Names with letters beyond ASCII are escaped, twice in the arguments."""
    other = process(shape("ffffffffffff", stem))
    escaped = replace(other, process=shape("ffffffffffff", stem, arguments=arguments("ffffffffffff", stem)))
    nested = [
        process(shape(digest, stem, arguments=json.dumps({"of": arguments(digest, stem)})))
        for digest in ("0123456789ab", "ffffffffffff")
    ]
    assert differences([process(shape())], [other]) == []
    assert differences([process(shape(stem=stem))], [escaped]) == []
    assert differences(nested[:1], nested[1:]) == []


@pytest.mark.parametrize(
    ("before", "now", "words"),
    [
        ([SALES], [], ["operator 'sales' was removed"]),
        ([], [SALES], ["operator 'sales' was added"]),
        ([SALES], [replace(SALES, name="sold")], ["operator 'sales' was removed", "operator 'sold' was added"]),
        ([SALES, JOIN], [JOIN, SALES], ["the operators are in another order (they were sales, paid, now they are paid, sales)"]),
        ([SALES], [replace(SALES, kind="join")], ["sales: was an aggregate, and is a join"]),
        ([SALES], [replace(SALES, key=(("shop", "string"), ("day", "date")))], ["sales: the key was (shop string), and is (shop string, day date)"]),
        ([SALES], [replace(SALES, window=Window(60_000, 10_000))], ["sales: the window was 10000 ms, and is 60000 ms, every 10000 ms"]),
        ([SALES], [replace(SALES, window=GLOBAL)], ["sales: the window was 10000 ms, and is none"]),
        ([SALES], [replace(SALES, aggregates=(*SALES.aggregates, Aggregate("top", "max", "cents")))], ["sales: aggregate top was added"]),
        ([SALES], [replace(SALES, aggregates=SALES.aggregates[:1])], ["sales: aggregate cents was removed"]),
        ([SALES], [replace(SALES, aggregates=(SALES.aggregates[0], Aggregate("cents", "max", "cents")))], ["sales: aggregate cents was sum(cents int), and is max(cents int)"]),
        ([SALES], [replace(SALES, aggregates=SALES.aggregates[::-1])], ["sales: each aggregate has another place (they were orders, cents, now they are cents, orders)"]),
        ([SALES], [replace(SALES, emit="changes", ttl_ms=5)], ["sales: it emitted final rows, and emits changes ones", "sales: keys were kept for ever, and are for 5 ms"]),
        ([JOIN], [replace(JOIN, right=Side((("c", "c", "int64"),)))], ["paid: column of the right side b was removed", "paid: column of the right side c was added"]),
        ([process(shape())], [process(shape(arguments='{"limit": 4}'))], ["fraud: limit was 3, and is 4", 'fraud: of was {"made_of": ":Rate.Inner", "arguments": {}}, and is not set']),
        ([process(shape())], [process(shape(tables=(("seen", "other", None),)))], ["fraud: table seen has other columns, or other types"]),
        ([JOIN], [replace(JOIN, right=Side((("b", "b", "string"),)))], ["paid: column of the right side b was b int64, and is b string"]),
        ([process(shape())], [process(shape(made_of="ferry_pipeline_sales_0123456789ab:Other"))], ["fraud: its class was Fraud, and is Other"]),
        ([process(shape())], [process(shape(tables=()))], ["fraud: table seen was removed"]),
        ([process(shape())], [process(shape(output="x", order="n", parts="p"))], None),
        ([process(shape())], [process(shape(columns=(("other",),)))], ["fraud: it read (cents), and reads (other), or columns of other types"]),
    ],
)  # fmt: skip
def test_a_difference_is_named(
    before: list[OperatorDescriptor], now: list[OperatorDescriptor], words: list[str] | None
) -> None:
    found = differences(before, now)
    assert found and (words is None or found == words)


def test_a_place_that_only_other_operators_have_changed_is_no_difference_of_its_own() -> None:
    assert differences([JOIN], [SALES, JOIN]) == ["operator 'sales' was added"]
