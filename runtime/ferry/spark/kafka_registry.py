"""Values that a schema registry knows: with which schema one was written, and what it says. Must never import Kafka.

Before such a value stand a zero byte and the schema's number, in four bytes. Schemas never change, so each is asked for once
in a process. That there is none may be another answer tomorrow: it is waited for, then believed for a while.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import pyarrow as pa

from ferry import environment
from ferry.contract.errors import SpecRefused, Unreachable
from ferry.spark import kafka_avro
from ferry.spark.json_lines import Epochs, parse_each
from ferry.spark.kafka_avro import Unfit as _Unfit

ANSWER_SECONDS = 10.0

FRAME = 5
"""Bytes before the value."""

SCHEMAS_MAX = 1000
"""Schemas of registries that a process remembers."""

MISSING_SECONDS = 30.0
"""A schema that the registry does not know is waited for so long: a follower knows it later than who has written it."""

BELIEVED_SECONDS = 60.0
"""After so long the registry is asked again for a schema that it did not have, or that could not be used."""


class SchemaRegistry:
    """Of the Confluent kind, asked by HTTP."""

    def __init__(self, url: str) -> None:
        """`url` may name variables of the environment; a login in it has to. Raises SpecRefused."""
        self._url = url.rstrip("/")
        login = url.partition("://")[2].partition("/")[0].rpartition("@")[0]
        if login and not environment.is_reference(login):
            raise SpecRefused(
                "kafka: the login in the registry's URL is a secret: give the name of an environment variable"
            )
        try:
            import fastavro  # noqa: F401
        except ImportError as missing:
            raise SpecRefused("kafka: the package fastavro is not installed: ferry-stream[kafka]") from missing

    def table(
        self, values: Sequence[bytes | None], fields: pa.Schema, epochs: Epochs = ()
    ) -> tuple[pa.Table, dict[int, str]]:
        """(what the values hold, what is wrong with the others by their place)."""
        bad: dict[int, str] = {}
        texts: dict[int, bytes] = {}
        rows: dict[int, dict[str, Any]] = {}
        readers: dict[str, kafka_avro.Read] = {}
        for i, value in enumerate(values):
            try:
                kind, schema = self._schema(value)
                assert value is not None
                if kind == "JSON":
                    texts[i] = value[FRAME:]
                else:
                    if schema not in readers:
                        readers[schema] = kafka_avro.reader_of(schema, fields, epochs)
                    rows[i] = readers[schema](value[FRAME:])
            except _Unfit as wrong:
                bad[i] = str(wrong)
        if not rows:
            table, wrong_texts = parse_each([*texts.values()], fields, epochs)
            places = [*texts]
            return table, bad | {places[i]: why for i, why in wrong_texts.items()}
        bad |= dict.fromkeys(texts, "JSON in a topic of Avro")
        return kafka_avro.table_of([*rows.items()], fields, bad), bad

    def _schema(self, value: bytes | None) -> tuple[str, str]:
        if value is None or len(value) < FRAME or value[0]:
            raise _Unfit("no number of a schema before the value")
        return _schema_of(environment.filled(self._url), int.from_bytes(value[1:FRAME]))


_missing: dict[tuple[str, int], float] = {}
"""Schemas that registries do not know, and since when this process is told so."""

_unfit: dict[tuple[str, int], tuple[float, str]] = {}
"""Until when it is believed that values of a schema cannot be read, and why."""


def _schema_of(url: str, number: int) -> tuple[str, str]:
    """(kind, text of the schema). Raises _Unfit when its values cannot be read, Unreachable when nobody can say."""
    until, why = _unfit.get((url, number), (0.0, ""))
    if time.monotonic() < until:
        raise _Unfit(why)
    try:
        return _asked(url, number)
    except _Unfit as wrong:
        if len(_unfit) >= SCHEMAS_MAX:
            _unfit.clear()
        _unfit[url, number] = time.monotonic() + BELIEVED_SECONDS, str(wrong)
        raise


@lru_cache(SCHEMAS_MAX)
def _asked(url: str, number: int) -> tuple[str, str]:
    """As _schema_of, of the registry itself. What is raised is not remembered."""
    import httpx

    try:
        answer = httpx.get(f"{url}/schemas/ids/{number}", timeout=ANSWER_SECONDS, follow_redirects=True)
    except httpx.HTTPError as error:
        raise Unreachable(f"schema registry: {type(error).__name__}: {error}") from error
    if answer.status_code == 404:
        _await(url, number)
        raise _Unfit(f"the registry has no schema {number}")
    if answer.status_code != 200:
        raise Unreachable(f"schema registry: status {answer.status_code} for schema {number}")
    try:
        about = answer.json()
        text = about["schema"]
    except (ValueError, TypeError, KeyError) as wrong:
        raise Unreachable(f"schema registry: what it answers for schema {number} is no schema") from wrong
    kind = about.get("schemaType", "AVRO")
    if kind not in ("AVRO", "JSON"):
        raise _Unfit(f"schema {number} is {kind}; Avro and JSON can be read")
    if about.get("references"):
        raise _Unfit(f"schema {number} refers to others, which is not read")
    if kind == "AVRO":
        _check(number, text)
    return kind, text


def _await(url: str, number: int) -> None:
    """Raise Unreachable while a schema that the registry does not know may still become known."""
    if len(_missing) >= SCHEMAS_MAX:
        _missing.clear()
    since = _missing.setdefault((url, number), time.monotonic())
    if time.monotonic() - since < MISSING_SECONDS:
        raise Unreachable(f"schema registry: it has no schema {number}; for {MISSING_SECONDS:g} s it is asked again")


def _check(number: int, text: str) -> None:
    try:
        kafka_avro.parsed(text)
    except Exception as wrong:  # Of many kinds.
        raise _Unfit(f"schema {number} is no schema of Avro: {wrong}") from wrong
