"""Values with a schema in a registry. Must never import Kafka.

Such a value begins with a zero byte and the schema's number in four bytes. `schemas` requests the schema from the registry.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from ferry import environment
from ferry.connectors.formats.json_lines import Epochs, parse_each
from ferry.connectors.kafka import avro as kafka_avro
from ferry.connectors.kafka import schemas as kafka_schemas
from ferry.connectors.kafka.schemas import Unfit
from ferry.contract.errors import SpecRefused
from ferry.kernels.columns import taken

FRAME = 5
"""Number of bytes before the value."""


class SchemaRegistry:
    """A client of a Confluent schema registry, by HTTP."""

    def __init__(self, url: str) -> None:
        """`url` may contain references to environment variables; a login must be a reference. Raises SpecRefused."""
        self._url = url.rstrip("/")
        if (scheme := url.partition("://")[0]) not in ("http", "https") and "${" not in scheme:
            raise SpecRefused(f"kafka: registry={url.rpartition('@')[2]!r}; give its URL, https://HOST:PORT")
        login = url.partition("://")[2].partition("/")[0].rpartition("@")[0]
        if login and not environment.is_reference(login):
            raise SpecRefused(
                "kafka: the login in the registry's URL is a secret: give the name of an environment variable"
            )
        kafka_avro.require()

    def table(
        self, values: Sequence[bytes | None], fields: pa.Schema, epochs: Epochs = ()
    ) -> tuple[pa.Table, dict[int, str]]:
        """(table of the values that fit, reasons of the malformed values by index). Raises Unreachable."""
        url = environment.filled(self._url)
        numbers = {i: int.from_bytes(value[1:FRAME]) for i, value in enumerate(values) if value and _is_framed(value)}
        table, bad = self._read(url, values, numbers, fields, epochs)
        doubtful = {numbers[i] for i in bad if i in numbers}
        if not [number for number in doubtful if kafka_schemas.doubt(url, number)]:
            return table, bad
        return self._read(url, values, numbers, fields, epochs)

    def _read(
        self, url: str, values: Sequence[bytes | None], numbers: Mapping[int, int], fields: pa.Schema, epochs: Epochs
    ) -> tuple[pa.Table, dict[int, str]]:
        schemas = kafka_schemas.fetch(url, dict.fromkeys(numbers.values()))
        bad: dict[int, str] = {}
        texts: dict[int, bytes] = {}
        rows: dict[int, dict[str, Any]] = {}
        readers: dict[str, kafka_avro.Read] = {}
        for i, value in enumerate(values):
            try:
                if value is None or i not in numbers:
                    raise Unfit("no schema number before the value")
                schema = schemas[numbers[i]]
                if isinstance(schema, Unfit):
                    raise schema
                kind, text = schema
                if kind == "JSON":
                    texts[i] = value[FRAME:]
                else:
                    if text not in readers:
                        readers[text] = _reader(text, fields, epochs)
                    rows[i] = readers[text](value[FRAME:])
            except Unfit as wrong:
                bad[i] = str(wrong)
        table, wrong_texts = parse_each([*texts.values()], fields, epochs)
        among = [*texts]
        bad |= {among[i]: why for i, why in wrong_texts.items()}
        if rows:
            table = pa.concat_tables([table, kafka_avro.table_of([*rows.items()], fields, bad)])
            order = [i for i in (*texts, *rows) if i not in bad]
            places = pa.array(np.argsort(order))
            columns = [taken(column.combine_chunks(), places) for column in table.columns]
            table = pa.Table.from_arrays(columns, schema=table.schema)
        return table, bad


def _is_framed(value: bytes) -> bool:
    return len(value) >= FRAME and not value[0]


def _reader(text: str, fields: pa.Schema, epochs: Epochs) -> kafka_avro.Read:
    try:
        return kafka_avro.reader_of(text, fields, epochs)
    except Exception as wrong:  # fastavro raises many classes.
        raise Unfit(f"not an Avro schema: {wrong}") from wrong
