"""What a registry of schemas says, over real HTTP: what is kept, what is waited for, and schemas that refer to others."""

from __future__ import annotations

import io
import json
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import fastavro
import pyarrow as pa
import pytest

import ferry
from ferry.connectors.kafka import schemas as kafka_schemas
from ferry.connectors.kafka.registry import SchemaRegistry
from ferry.contract.errors import SpecRefused, Unreachable

COLUMNS = pa.schema([("user", pa.string()), ("ts", pa.int64())])
NONE = (404, b'{"error_code": 40403, "message": "Schema not found"}')


def record(name: str, fields: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": [{"name": n, "type": t} for n, t in fields.items()], **more}


USER = record("User", {"user": "string", "ts": "long"})


class Registry:
    """Answers by path, (status, body) or what a function does with the request; the first `first` before these."""

    def __init__(self) -> None:
        self.answers: dict[str, Any] = {}
        self.first: list[Any] = []
        self.asked: list[str] = []
        registry = self

        class Answers(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                registry.asked.append(self.path)
                answer = registry.first.pop(0) if registry.first else registry.answers.get(self.path, NONE)
                if callable(answer):
                    answer(self)
                    return
                self.send_response(answer[0])
                self.end_headers()
                self.wfile.write(answer[1])

            def log_message(self, *words: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Answers)
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def has(self, path: str, schema: Any, **more: Any) -> None:
        text = schema if isinstance(schema, str) else json.dumps(schema)
        self.answers[path] = 200, json.dumps({"schema": text, **more}).encode()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def registry() -> Iterator[Registry]:
    kafka_schemas.forget()
    one = Registry()
    yield one
    one.close()


def value(number: int, schema: Any, row: dict[str, Any]) -> bytes:
    data = io.BytesIO()
    fastavro.schemaless_writer(data, fastavro.parse_schema(schema), row)
    return b"\0" + number.to_bytes(4) + data.getvalue()


def read(registry: Registry, *values: bytes, columns: pa.Schema = COLUMNS) -> tuple[list[Any], dict[int, str]]:
    table, bad = SchemaRegistry(registry.url).table(values, columns)
    return table.to_pylist(), bad


def drips(request: BaseHTTPRequestHandler) -> None:
    """An answer without an end, a little now and then."""
    request.send_response(200)
    request.end_headers()
    while True:
        request.wfile.write(b" " * 10)
        time.sleep(0.05)


def floods(request: BaseHTTPRequestHandler) -> None:
    request.send_response(200)
    request.end_headers()
    for _ in range(1000):
        request.wfile.write(b" " * 10_000)


def elsewhere(request: BaseHTTPRequestHandler) -> None:
    """To a page that sends on to itself."""
    request.send_response(302)
    request.send_header("Location", request.path)
    request.end_headers()


@pytest.mark.parametrize(
    "answer",
    [
        (404, b"404 page not found"),
        (404, b'{"error_code": 404, "message": "HTTP 404 Not Found"}'),
        (403, b"{}"),
        (200, b"[" * 100_000),
        (200, b'{"schema": "{\\"type\\": \\"rec"}'),
        (200, b'{"schema": {"type": "string"}}'),
        (200, b'"schema"'),
        drips,
        floods,
    ],
)
def test_what_is_not_the_word_of_a_registry_is_waited_for(
    registry: Registry, answer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kafka_schemas, "MISSING_SECONDS", 0.0)
    monkeypatch.setattr(kafka_schemas, "WHOLE_SECONDS", 0.3)
    monkeypatch.setattr(kafka_schemas, "ANSWER_BYTES_MAX", 1 << 20)
    registry.has("/schemas/ids/7", USER)
    registry.first = [answer]
    one = value(7, USER, {"user": "a", "ts": 1})
    with pytest.raises(Unreachable, match="schema registry"):
        read(registry, one)
    monkeypatch.setattr(kafka_schemas, "WHOLE_SECONDS", 30.0)
    assert read(registry, one) == ([{"user": "a", "ts": 1}], {})


def test_a_registry_that_sends_in_circles_is_waited_for(registry: Registry) -> None:
    registry.answers["/schemas/ids/7"] = elsewhere
    with pytest.raises(Unreachable, match="TooManyRedirects"):
        read(registry, value(7, USER, {"user": "a", "ts": 1}))


def test_schemas_that_are_missing_are_waited_for_together(registry: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    """Values of another kind that begin with a zero byte have a number each; none of them waits for the one before."""
    registry.has("/schemas/ids/7", USER)
    values = [b"\0" + i.to_bytes(4) for i in range(100, 120)] + [value(7, USER, {"user": "a", "ts": 1})]
    with pytest.raises(Unreachable, match=r"it has no schema 119; requested again for 30 s"):
        read(registry, *values)
    monkeypatch.setattr(kafka_schemas, "MISSING_SECONDS", 0.0)
    rows, bad = read(registry, *values)
    assert rows == [{"user": "a", "ts": 1}] and len(bad) == 20
    many = len(registry.asked)
    assert len(read(registry, *values)[1]) == 20 and len(registry.asked) == many, "believed for a while"


def test_a_schema_is_asked_for_again_where_values_do_not_fit_it(
    registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A registry that was set up anew gives the numbers again."""
    registry.has("/schemas/ids/7", record("Other", {"n": "double", "m": {"type": "fixed", "name": "F", "size": 90}}))
    one = value(7, USER, {"user": "a", "ts": 1})
    assert [*read(registry, one)[1]] == [0]
    registry.has("/schemas/ids/7", USER)
    assert [*read(registry, one)[1]] == [0] and len(registry.asked) == 1
    monkeypatch.setattr(kafka_schemas, "BELIEVED_SECONDS", 0.0)
    assert read(registry, one) == ([{"user": "a", "ts": 1}], {})
    assert read(registry, one) == ([{"user": "a", "ts": 1}], {}) and len(registry.asked) == 2


def test_json_and_avro_in_one_topic_are_judged_alone(registry: Registry) -> None:
    registry.has("/schemas/ids/7", USER)
    registry.has("/schemas/ids/8", "{}", schemaType="JSON", references=[{"name": "x", "subject": "s", "version": 1}])
    json_value = b'\0\0\0\0\x08{"user": "j", "ts": 2}'
    avro = value(7, USER, {"user": "a", "ts": 1})
    rows, bad = read(registry, json_value, avro, b"x", avro, json_value, json_value[:-1])
    assert [row["user"] for row in rows] == ["j", "a", "a", "j"] and [*bad] == [2, 5]


def test_a_schema_that_refers_to_others_is_put_together(registry: Registry) -> None:
    kind = {"type": "enum", "name": "geo.Kind", "symbols": ["A", "B"]}
    place = record(
        "Place", {"city": "string", "kind": "Kind", "near": {"type": "array", "items": "Place"}}, namespace="geo"
    )
    plain = record("Plain", {"n": "int"})
    event = record(
        "Event",
        {
            "user": "string",
            "home": {"type": "geo.Place"},
            "other": ["null", "geo.Place", "Plain"],
            "kinds": {"type": "map", "values": "geo.Kind"},
            "plain": {"type": "Plain"},
            "next": ["null", "Event"],
            "ts": {"type": "long", "logicalType": "local"},
        },
        namespace="app",
    )
    refers = [
        {"name": "geo.Place", "subject": "geo/place-value", "version": 3},
        {"name": "Plain", "subject": "plain", "version": 1},
    ]
    registry.has("/schemas/ids/7", event, references=refers)
    registry.has("/subjects/geo%2Fplace-value/versions/3", place, references=[{**refers[0], "subject": "kind"}])
    registry.has("/subjects/kind/versions/3", kind)
    registry.has("/subjects/plain/versions/1", plain)
    # As who has all of it in one file would write it.
    place["fields"][1]["type"], plain["namespace"] = kind, ""
    whole = json.loads(json.dumps(event))
    whole["fields"][1]["type"] = place
    whole["fields"][2]["type"] = ["null", "geo.Place"]
    whole["fields"][4]["type"] = plain
    home = {"city": "x", "kind": "B", "near": []}
    row: dict[str, Any] = {
        "user": "a",
        "home": {**home, "near": [home]},
        "other": home,
        "kinds": {"k": "A"},
        "plain": {"n": 1},
    }
    row |= {"ts": 5, "next": {**row, "user": "b", "next": None, "ts": 6}}
    one = value(7, whole, row)
    assert read(registry, one) == ([{"user": "a", "ts": 5}], {})
    columns = pa.schema(
        [
            ("home", pa.struct([("city", pa.string()), ("kind", pa.string())])),
            ("kinds", pa.map_(pa.string(), pa.string())),
        ]
    )
    assert read(registry, one, columns=columns)[0] == [{"home": {"city": "x", "kind": "B"}, "kinds": [("k", "A")]}]
    many = len(registry.asked)
    read(registry, one)
    assert len(registry.asked) == many == 4


def test_what_a_schema_refers_to_is_waited_for(registry: Registry) -> None:
    refers = [{"name": "Inner", "subject": "inner", "version": 1}]
    registry.has("/schemas/ids/7", record("User", {"user": "string", "in": "Inner", "ts": "long"}), references=refers)
    whole = record("User", {"user": "string", "in": record("Inner", {}), "ts": "long"})
    one = value(7, whole, {"user": "a", "in": {}, "ts": 1})
    with pytest.raises(Unreachable, match="no version 1 of subject 'inner', to which schema 7 refers"):
        read(registry, one)
    registry.has("/subjects/inner/versions/1", record("Inner", {}))
    assert read(registry, one) == ([{"user": "a", "ts": 1}], {})


@pytest.mark.parametrize("url", ["registry:8081", "ftp://registry", ""])
def test_an_address_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(SpecRefused, match="give its URL"):
        ferry.kafka("a:1", "t", COLUMNS, registry=url)
