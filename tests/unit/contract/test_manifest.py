"""The manifest of a checkpoint is the root of all its files: damage to it is noticed, whatever bit it hits."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest

from ferry.contract.descriptors import GLOBAL, Aggregate, OperatorDescriptor
from ferry.contract.errors import Refusal
from ferry.contract.manifest import MANIFEST_FORMAT, Manifest, StoredFile, _digest
from ferry.contract.programs import first_program
from tests.unit.durable.stores import manifest

WHOLE = manifest(7, StoredFile("files/a/1-2", 5, 77, 0, "scan", 3, 9), name="before")


def test_a_manifest_is_read_as_it_was_written() -> None:
    again = Manifest.load(WHOLE.dump())
    assert again == WHOLE and Manifest.load(again.dump()) == again


def test_the_first_program_without_an_operator_of_a_later_one_is_read_as_it_was_written() -> None:
    """The catalogue has the operators of a program that is not in force yet."""
    counts = OperatorDescriptor("n", 0, "aggregate", (("k", "int"),), GLOBAL, (Aggregate("n", "count"),))
    one = replace(WHOLE, operators=(counts, replace(counts, name="more")), programs=first_program(1), format=0)
    again = Manifest.load(one.dump())
    assert again.programs == first_program(1) and again.format == MANIFEST_FORMAT


def test_each_flipped_bit_is_refused_or_changes_nothing() -> None:
    text = WHOLE.dump()
    accepted = []
    for at in range(len(text)):
        for bit in range(8):
            damaged = text[:at] + bytes([text[at] ^ 1 << bit]) + text[at + 1 :]
            try:
                if Manifest.load(damaged) != WHOLE:
                    accepted.append((at, bit))
            except Refusal:
                pass
    assert not accepted


@pytest.mark.parametrize("value", [None, 1, -1, "x", [], {}, [None], True, 1e308])
def test_a_value_of_another_type_is_refused_in_words(value: Any) -> None:
    doc = json.loads(WHOLE.dump())
    for name in doc:
        if doc[name] != value:
            with pytest.raises(Refusal, match=r"damaged|no manifest|format"):
                Manifest.load(json.dumps(doc | {name: value}).encode())
        signed = {key: one for key, one in doc.items() if key != "digest"} | {name: value}
        with suppress(Refusal):
            Manifest.load(json.dumps(signed | {"digest": _digest(signed)}).encode())


def test_a_digest_names_its_algorithm_and_another_one_is_refused() -> None:
    doc = json.loads(WHOLE.dump())
    algorithm, digits = doc["digest"].split(":")
    assert (algorithm, len(digits)) == ("sha256", 64)
    for digest in (digits, f"xxh3:{digits}", ""):
        with pytest.raises(Refusal, match="damaged"):
            Manifest.load(json.dumps(doc | {"digest": digest}).encode())
    del doc["digest"]
    with pytest.raises(Refusal, match="digest"):
        Manifest.load(json.dumps(doc).encode())
