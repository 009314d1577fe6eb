"""A text travels packed and sealed, and programs are compared by identities."""

from __future__ import annotations

import random
import zlib
from base64 import b64encode

import pytest

from ferry.contract.errors import SpecRefused
from ferry.contract.program_text import (
    PACKED_MAX,
    TEXT_BYTES_MAX,
    hash_of,
    identity,
    is_sealed,
    packed,
    sealed,
    unpacked,
)


def test_a_text_comes_back_as_it_was() -> None:
    text = "import ferry\n# Größe\n" * 100
    assert unpacked(packed(text)).decode() == text and len(packed(text)) < len(text) / 10


def test_a_long_text_is_refused_with_both_numbers() -> None:
    with pytest.raises(SpecRefused, match="1,048,577 bytes, and 1,048,576 are allowed: have data in files"):
        packed("#" * (TEXT_BYTES_MAX + 1))
    chance = random.Random(1)
    dense = "".join(chance.choice("abcdefghijklmnopqrstuvwxyz0123456789") for _ in range(2 * PACKED_MAX))
    with pytest.raises(SpecRefused, match=f"bytes when compressed, and {PACKED_MAX:,} are allowed"):
        packed(dense)


@pytest.mark.parametrize(
    "text",
    ["?", "abcd", b64encode(zlib.compress(b"#" * (TEXT_BYTES_MAX + 1))).decode(), packed("some text")[:-8]],
    ids=["no base64", "not packed", "a bomb", "cut"],
)
def test_nothing_else_is_unpacked(text: str) -> None:
    with pytest.raises(ValueError, match="it is no packed text"):
        unpacked(text)


def test_a_seal_is_of_one_text_and_one_run() -> None:
    seal = sealed(packed("a"), "secret")
    assert is_sealed(packed("a"), seal, "secret")
    assert not is_sealed(packed("b"), seal, "secret") and not is_sealed(packed("a"), seal, "other")


def test_equal_programs_have_equal_identities() -> None:
    mine = identity(None, "configmap/a/job.py", "0123", {"a": 1, "b": [2]})
    assert mine == identity(None, "configmap/b/job.py", "0123", {"b": [2], "a": 1}), (
        "the place of a text is not the text"
    )
    others = [
        identity(None, "configmap/a/job.py", "4567", {"a": 1, "b": [2]}),
        identity(None, "configmap/a/job.py", "0123", {"a": 1.0, "b": [2]}),
        identity(None, "/a/job.py", "", {}),
        identity(None, "/b/job.py", "", {}),
        identity("a", None, "", {}),
    ]
    assert len({mine, *others}) == 6
    assert hash_of([(None, b"a"), ("m", b"b")]) == hash_of([("m", b"b"), (None, b"a")]) != hash_of([(None, b"ab")])
