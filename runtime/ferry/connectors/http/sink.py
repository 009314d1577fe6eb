"""Rows as JSON, sent to a URL: at least once, with a key by which the receiver knows a repetition.

    2xx                          the part has arrived
    no answer, 408, 409, 425, 429, 5xx   tried again, with the same key; Retry-After is heeded
    401, 403, 404                the same, once something has arrived; before that the job is refused
    anything else                the job stops: another try would be answered the same

The rows of an epoch are put in an order of their own, so that each part has the same rows, and the same key, whenever and by
whomever it is sent. Must never send a row without a key.
"""

from __future__ import annotations

import hashlib
import re
import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import pyarrow as pa

from ferry import environment
from ferry.connectors import secrets
from ferry.connectors.formats.json_text import json_text
from ferry.connectors.sink import Sink
from ferry.contract.durations import Duration, milliseconds
from ferry.contract.errors import DataRefused, Final, SpecRefused, Unreachable
from ferry.contract.one_line import one_line
from ferry.contract.texts import require_name
from ferry.kernels.frame_types import for_frame

if TYPE_CHECKING:
    import httpx
    from pyspark.sql import DataFrame

AGAIN = {408, 409, 425, 429}
"""Statuses that may be others soon, beside those of 500 and more. 409: a request with this key is still under way."""

RIGHTS = {401, 403, 404}

WAIT_SECONDS_MAX = 300.0
"""What a Retry-After may ask for."""

NAME, VALUE = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+"), re.compile(r"(?! )[\x20-\x7e\t]*(?<![ \t])")
"""Names and values of headers (RFC 9110, section 5)."""

SHOWN = 200
"""Characters of an answer that an error shows."""


class HttpSink(Sink):
    """See `http`."""

    def __init__(
        self, url: str, batch: int, headers: Mapping[str, str], timeout: float, lines: bool, name: str
    ) -> None:
        self._url = url
        self._batch = batch
        self._headers = headers
        self._timeout = timeout
        self._lines = lines
        self._name = name
        self._run = ""
        self._client: httpx.Client | None = None
        self._arrived: set[str] = set()
        """Keys of parts of the epoch under way."""
        self._has_written = False
        self._not_before = 0.0

    def __repr__(self) -> str:
        return f"http({secrets.shown_url(self._url)!r})"

    @property
    def label(self) -> str:
        """What `ferry.test` calls it."""
        return self._name

    def identify(self, job: str, run: str = "", before: str | None = None) -> str:
        """Keys are of a job, a sink and a run, and not of the URL, whose host may get another name."""
        self._run = f"{job}.{self._name}.{run}"
        return f"{job}.{self._name} of http"

    def open(self, committed: int) -> None:
        """Nothing is sent."""
        self._filled()
        self._has_written = committed >= 0

    def write(self, epoch: int, generation: int, rows: pa.Table | DataFrame) -> None:
        """Send what has not arrived yet. Raises Unreachable to be called again."""
        if (left := self._not_before - time.monotonic()) > 0:
            raise Unreachable(f"{self!r} asks to wait, for {left:.0f} s more")
        parts = list(self._parts(for_frame(rows if isinstance(rows, pa.Table) else rows.toArrow())))
        for number, part in enumerate(parts):
            key = hashlib.sha256(f"{self._run} {epoch} {number}\n{part}".encode()).hexdigest()[:40]
            if key not in self._arrived:
                about = {"Idempotency-Key": key, "Ferry-Epoch": str(epoch), "Ferry-Part": f"{number + 1}/{len(parts)}"}
                self._send(part, about)
                self._arrived.add(key)
        self._arrived.clear()

    def keep_after(self, epoch: int) -> None:
        """What was sent stays; other rows of an epoch's number have other keys."""

    def truncate_after(self, epoch: int) -> None:
        """Nothing can be taken back. Raises SpecRefused."""
        raise SpecRefused(
            f"sink: {self!r} cannot take back what it has sent after epoch {epoch}. Restore with --sink keep "
            "(spec.restoreSink: keep): later epochs are sent once more, rows that are the same ones with the same keys"
        )

    def _parts(self, table: pa.Table) -> Iterator[str]:
        """Texts of so many rows each."""
        rows = sorted(json_text(table))
        for begin in range(0, len(rows), self._batch):
            part = rows[begin : begin + self._batch]
            yield "\n".join(part) + "\n" if self._lines else f"[{','.join(part)}]"

    def _send(self, part: str, about: Mapping[str, str]) -> None:
        import httpx

        kind = "application/x-ndjson" if self._lines else "application/json"
        url, given = secrets.filled_url(self._url), self._filled()
        if self._client is None:
            self._client = httpx.Client(timeout=self._timeout, follow_redirects=False)
        try:
            answer = self._client.post(url, content=part.encode(), headers={"Content-Type": kind, **given, **about})
        except (httpx.InvalidURL, httpx.UnsupportedProtocol) as error:
            raise SpecRefused(self._hidden(f"{self!r}: {error}")) from None
        except httpx.HTTPError as error:
            raise Unreachable(self._hidden(f"{self!r}: {type(error).__name__}: {error}")) from None
        if not answer.is_success:
            raise self._failure(answer, about)
        self._has_written = True

    def _filled(self) -> dict[str, str]:
        """Headers. Raises SpecRefused for one that cannot be sent, without its value: the client's own words have it."""
        given = secrets.filled(self._headers)
        for name, value in given.items():
            if not NAME.fullmatch(name):
                raise SpecRefused(f"{self!r}: {name!r} is no name of a header")
            if not VALUE.fullmatch(value):
                raise SpecRefused(
                    f"{self!r}: the value of header {name!r} has a line break, a blank at an end or a character beyond ASCII"
                )
        return given

    def _failure(self, answer: httpx.Response, about: Mapping[str, str]) -> Exception:
        """What an answer is to the job."""
        status, words = answer.status_code, one_line(self._hidden(answer.text)[:SHOWN])
        what = f"{self!r} answers {status} to part {about['Ferry-Part']} of epoch {about['Ferry-Epoch']}"
        text = f"{what}: {words}" if words else what
        if status >= 500 or status in AGAIN:
            self._not_before = time.monotonic() + _asked_seconds(answer.headers.get("Retry-After", ""))
            return Unreachable(text)
        if status in RIGHTS:
            return Unreachable(text) if self._has_written else SpecRefused(text)
        if answer.is_redirect:
            return SpecRefused(f"{what}, which leads to another URL: give that")
        if status == 413:
            return DataRefused(f"{text}; give fewer rows at a time, batch={max(self._batch // 4, 1)}")
        return Final(text)

    def _hidden(self, text: str) -> str:
        return secrets.masked(text, [self._url, *self._headers.values()])


def _asked_seconds(header: str) -> float:
    """How long the other end asks to wait; dates are not heeded."""
    return min(float(header), WAIT_SECONDS_MAX) if header.strip().isdecimal() else 0.0


def http(
    url: str,
    *,
    batch: int = 500,
    headers: Mapping[str, str] | None = None,
    timeout: Duration = "30s",
    format: str = "json",
    name: str | None = None,
) -> HttpSink:
    """Rows as JSON objects, sent to a URL by POST: each epoch at least once, some rows in a request.

    Each request has the header Idempotency-Key. A part that is sent again, by this driver or the next, has the same key
    and the same rows: a receiver that remembers keys has each row once. `Ferry-Epoch` and `Ferry-Part` ("2/3") are in the
    headers, too. The driver sends, one request after the other.

    Parameters:
        url: is asked to take rows; a login or a token in it is the name of a variable, "https://${LOGIN}@host/rows".
        batch: how many rows are in a request at most.
        headers: more headers; a secret is the name of a variable of the environment: {"Authorization": "Bearer ${TOKEN}"}.
        timeout: how long a receiver may be silent, before and within its answer, "30s".
        format: "json" for an array of objects, "lines" for one object a line (application/x-ndjson).
        name: of the sink in its job, which is part of its keys; None: the last name of the URL's path.
    Returns: a sink.
    Raises: SpecRefused, if an argument is none of these.
    Example:
        >>> output = counts.sink(ferry.http("https://shop.example/counts", headers={"Authorization": "Bearer ${TOKEN}"}))
    """
    require_name(url, "http: url")
    if not url.startswith(("http://", "https://")) and not environment.is_reference(url):
        raise SpecRefused(f"http: url {secrets.shown_place(url)!r}; give https://HOST/PATH")
    secrets.require_no_login(url, "http: url")
    if not isinstance(batch, int) or isinstance(batch, bool) or batch < 1:
        raise SpecRefused(f"http: batch={batch!r}; it is how many rows are in a request at most, 1 at least")
    if format not in ("json", "lines"):
        raise SpecRefused(f'http: format={format!r}; it is "json" or "lines"')
    if name is not None:
        require_name(name, "http: name=")
    given, seconds = secrets.require_references(headers, "http: headers"), milliseconds(timeout, "http: timeout") / 1000
    if seconds <= 0:
        raise SpecRefused(f"http: timeout={timeout!r}; an answer takes some time")
    last = secrets.shown_url(url).partition("://")[2].rstrip("/").rpartition("/")[2]
    return HttpSink(url, batch, given, seconds, format == "lines", name or last or "http")
