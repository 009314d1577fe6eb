"""Rows arrive at a real server at least once, and a key tells repetitions; what it answers is waited for, or ends the job."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

import ferry
from ferry.connectors import sink as sinks
from ferry.connectors.http import sink as http_sink
from ferry.connectors.http.sink import HttpSink
from ferry.contract.errors import DataRefused, Final, SpecRefused, Unreachable
from tests.http_receiver import HttpReceiver


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HttpReceiver]:
    one = HttpReceiver(tmp_path_factory.mktemp("receiver"))
    yield one
    one.close()


@pytest.fixture
def receiver(server: HttpReceiver) -> HttpReceiver:
    server.forget()
    return server


def opened(receiver: HttpReceiver, committed: int = -1, run: str = "run", **more: Any) -> HttpSink:
    sink = ferry.http(receiver.url, **{"batch": 2, **more})
    sink.identify("job", run)
    sink.open(committed)
    return sink


def rows(*values: int) -> pa.Table:
    return pa.table({"n": pa.array(values, pa.int64())})


def keys(receiver: HttpReceiver) -> list[str]:
    return [one["headers"]["idempotency-key"] for one in receiver.requests]


def test_rows_come_in_parts_of_a_key_each(receiver: HttpReceiver) -> None:
    opened(receiver).write(7, 1, rows(3, 1, 2))
    first, second = receiver.requests
    assert json.loads(first["body"]) == [{"n": 1}, {"n": 2}] and json.loads(second["body"]) == [{"n": 3}]
    assert [one["headers"]["ferry-part"] for one in (first, second)] == ["1/2", "2/2"]
    assert first["headers"]["ferry-epoch"] == "7" and first["headers"]["content-type"] == "application/json"
    assert len(set(keys(receiver))) == 2


def test_a_repetition_has_the_same_keys_whatever_the_order_and_the_driver(receiver: HttpReceiver) -> None:
    opened(receiver).write(7, 1, rows(3, 1, 2))
    opened(receiver, committed=7).write(7, 2, rows(2, 3, 1))
    assert keys(receiver)[:2] == keys(receiver)[2:]
    assert receiver.rows == [{"n": 1}, {"n": 2}, {"n": 3}]


def test_another_epoch_run_or_other_rows_have_other_keys(receiver: HttpReceiver) -> None:
    opened(receiver).write(7, 1, rows(1))
    opened(receiver).write(8, 1, rows(1))
    opened(receiver, run="next").write(7, 1, rows(1))
    opened(receiver).write(7, 2, rows(5))  # as after a restore
    assert len(set(keys(receiver))) == 4


@pytest.mark.parametrize("answer", ["503", "500 no room", "429", "408", "409", "drop"])
def test_what_may_pass_is_tried_again_without_the_parts_that_arrived(receiver: HttpReceiver, answer: str) -> None:
    sink = opened(receiver)
    receiver.answer("200", answer)
    with pytest.raises(Unreachable, match="RemoteProtocolError|ReadError" if answer == "drop" else answer[:3]):
        sink.write(0, 1, rows(1, 2, 3))
    sink.write(0, 1, rows(1, 2, 3))
    assert len(receiver.requests) == 3 and keys(receiver)[1] == keys(receiver)[2]
    assert receiver.rows == [{"n": 1}, {"n": 2}, {"n": 3}]


def test_it_waits_as_long_as_it_is_asked(receiver: HttpReceiver, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [1000.0]
    monkeypatch.setattr("ferry.connectors.http.sink.time.monotonic", lambda: clock[0])
    sink = opened(receiver)
    receiver.answer("429 Retry-After: 60")
    with pytest.raises(Unreachable, match="answers 429 to part 1/1 of epoch 0"):
        sink.write(0, 1, rows(1))
    clock[0] += 59
    with pytest.raises(Unreachable, match="asks to wait 1 s more"):
        sink.write(0, 1, rows(1))
    assert len(receiver.requests) == 1
    clock[0] += 2
    sink.write(0, 1, rows(1))
    assert receiver.rows == [{"n": 1}]


def test_what_will_never_be_taken_ends_the_job(receiver: HttpReceiver) -> None:
    sink = opened(receiver)
    receiver.answer("400 no such shop", "413", "308 Location: /elsewhere")
    with pytest.raises(Final, match=r"answers 400 to part 1/1 of epoch 0: no such shop$"):
        sink.write(0, 1, rows(1))
    with pytest.raises(DataRefused, match=r"send fewer rows per request, batch=1$"):
        sink.write(0, 1, rows(1))
    with pytest.raises(SpecRefused, match="a redirect to another URL"):
        sink.write(0, 1, rows(1))


@pytest.mark.parametrize("status", ["401", "403", "404"])
def test_a_right_that_was_never_there_is_refused_and_one_that_is_gone_is_waited_for(
    receiver: HttpReceiver, status: str
) -> None:
    sink = opened(receiver)
    receiver.answer(status, "200", status)
    with pytest.raises(SpecRefused, match=status):
        sink.write(0, 1, rows(1))
    sink.write(0, 1, rows(1))
    with pytest.raises(Unreachable, match=status):
        sink.write(1, 1, rows(1))


def test_secrets_are_sent_and_never_shown(receiver: HttpReceiver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOKEN", "open sesame")
    sink = opened(receiver, headers={"Authorization": "Bearer ${TOKEN}"})
    receiver.answer("400 Bearer open sesame is wrong")
    with pytest.raises(Final, match=r"Bearer \$\{TOKEN\} is wrong") as refused:
        sink.write(0, 1, rows(1))
    assert receiver.requests[0]["headers"]["authorization"] == "Bearer open sesame"
    assert "sesame" not in f"{refused.value} {sink!r}"
    assert repr(ferry.http("https://${LOGIN}@host/rows?page=1")) == "http('https://host/rows')"
    assert repr(ferry.http("${HOOK}")) == "http('${HOOK}')"


def test_lines_are_a_format_of_their_own(receiver: HttpReceiver) -> None:
    opened(receiver, format="lines").write(0, 1, rows(1, 2))
    (one,) = receiver.requests
    assert one["body"] == '{"n":1}\n{"n":2}\n' and one["headers"]["content-type"] == "application/x-ndjson"


@pytest.mark.parametrize("token", ["hello\n", "hello\nthere", "hellö", " hello"])
def test_a_header_that_cannot_be_sent_is_refused_without_its_value(
    token: str, receiver: HttpReceiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOKEN", token)
    with pytest.raises(SpecRefused, match="the value of header 'Authorization' has a line break") as refused:
        opened(receiver, headers={"X-One": "fine; q=1", "Authorization": "${TOKEN}"}).write(0, 1, rows(1))
    assert "hell" not in str(refused.value) and not receiver.requests
    with pytest.raises(SpecRefused, match="'X y' is not a header name"):
        opened(receiver, headers={"X y": "1"}).write(0, 1, rows(1))


def test_an_answer_is_cut_behind_its_secrets(receiver: HttpReceiver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOKEN", "hello-and-more")
    receiver.answer(f"400 {'x' * (http_sink.SHOWN - 5)}hello-and-more")
    with pytest.raises(Final) as stopped:
        opened(receiver, headers={"Authorization": "${TOKEN}"}).write(0, 1, rows(1))
    assert "xxx" in str(stopped.value) and "hello" not in str(stopped.value)


def test_two_sinks_of_one_name_would_have_the_same_keys() -> None:
    with pytest.raises(SpecRefused, match="use two name="):
        sinks.identify([ferry.http("https://host/a/rows"), ferry.http("https://host/b/rows")], "job", "run")
    sinks.identify([ferry.http("https://host/a/rows"), ferry.http("https://host/b/rows", name="b")], "job", "run")


def test_a_restore_is_refused_unless_what_was_sent_is_kept(receiver: HttpReceiver) -> None:
    with pytest.raises(SpecRefused, match="--sink keep"):
        opened(receiver).truncate_after(3)
    opened(receiver).keep_after(3)


REFUSED = [
    ({"url": "shop.example/rows"}, "give https://HOST/PATH"),
    ({"url": "https://me:hello@host/rows"}, "the password in the URL is a secret"),
    ({"url": "https://host/rows?token=hello"}, r"parameter 'token' is a secret"),
    ({"url": "https://host/rows?sig=hello"}, r"parameter 'sig' is a secret"),
    ({"headers": {"X-Auth": "hello"}}, r"headers 'X-Auth' is a secret"),
    ({"headers": {"Authorization": "Bearer hello"}}, r"headers 'Authorization' is a secret"),
    ({"headers": {"X-Api-Key": "hello"}}, r"headers 'X-Api-Key' is a secret"),
    ({"headers": ["a"]}, "is a dictionary of texts, not list"),
    ({"batch": 0}, "batch=0"),
    ({"format": "xml"}, "format='xml'"),
    ({"timeout": 30}, "has no unit"),
    ({"timeout": "0s"}, "it must be positive"),
    ({"name": ""}, "give its name"),
]


@pytest.mark.parametrize(("given", "text"), REFUSED)
def test_what_cannot_be_meant_is_refused(given: dict[str, Any], text: str) -> None:
    with pytest.raises(SpecRefused, match=text) as refused:
        ferry.http(**{"url": "https://host/rows", **given})
    assert "hello" not in str(refused.value)
