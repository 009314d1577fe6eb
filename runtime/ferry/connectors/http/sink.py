"""Rows as JSON, posted to a URL: at least once, with an idempotency key in each request.

    2xx                                  the part has arrived
    no answer, 408, 409, 425, 429, 5xx   retried with the same key, after the time of Retry-After
    401, 403, 404                        retried after a part has arrived; before that the job is refused
    other status                         the job stops, because a retry would get the same answer

The rows of an epoch are sorted, so every driver sends the same parts with the same keys. Must never send rows without a key.
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
"""Statuses to retry, besides 500 and greater. 409: a request with this key is still running."""

RIGHTS = {401, 403, 404}
"""Statuses of a receiver that refuses this client. A running job retries them."""

WAIT_SECONDS_MAX = 300.0
"""Longest wait that a Retry-After header may request."""

NAME, VALUE = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+"), re.compile(r"(?! )[\x20-\x7e\t]*(?<![ \t])")
"""Names and values of headers (RFC 9110, section 5)."""

SHOWN = 200
"""Greatest number of characters of an answer in an error text."""


class HttpSink(Sink):
    """The sink of `http`."""

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
        """Keys of the current epoch's parts that have arrived."""
        self._has_written = False
        self._not_before = 0.0

    def __repr__(self) -> str:
        return f"http({secrets.shown_url(self._url)!r})"

    @property
    def label(self) -> str:
        """The sink's name in `ferry.test`."""
        return self._name

    def identify(self, job: str, run: str = "", before: str | None = None) -> str:
        """The sink's name for keys: job, sink and run. The URL is not part of it, because a host may be renamed."""
        self._run = f"{job}.{self._name}.{run}"
        return f"{job}.{self._name} of http"

    def open(self, committed: int) -> None:
        """Check the headers. Nothing is sent. Raises SpecRefused."""
        self._filled()
        self._has_written = committed >= 0

    def write(self, epoch: int, generation: int, rows: pa.Table | DataFrame) -> None:
        """Send the parts that have not arrived yet. Raises Unreachable to be called again."""
        if (left := self._not_before - time.monotonic()) > 0:
            raise Unreachable(f"{self!r} asks to wait {left:.0f} s more")
        parts = list(self._parts(for_frame(rows if isinstance(rows, pa.Table) else rows.toArrow())))
        for number, part in enumerate(parts):
            key = hashlib.sha256(f"{self._run} {epoch} {number}\n{part}".encode()).hexdigest()[:40]
            if key not in self._arrived:
                about = {"Idempotency-Key": key, "Ferry-Epoch": str(epoch), "Ferry-Part": f"{number + 1}/{len(parts)}"}
                self._send(part, about)
                self._arrived.add(key)
        self._arrived.clear()

    def keep_after(self, epoch: int) -> None:
        """Do nothing: sent rows stay. Different rows of the same epoch number have different keys."""

    @property
    def takes_back(self) -> bool:
        """Never: sent rows stay."""
        return False

    def truncate_after(self, epoch: int) -> None:
        """Raise SpecRefused: sent rows cannot be taken back."""
        raise SpecRefused(
            f"sink: {self!r} cannot take back the rows sent after epoch {epoch}. Restore with --sink keep "
            "(spec.restoreSink: keep): later epochs are sent once more; equal rows have the same keys"
        )

    def _parts(self, table: pa.Table) -> Iterator[str]:
        """The bodies of the requests for these rows, `batch` rows in each."""
        rows = sorted(json_text(table))
        for begin in range(0, len(rows), self._batch):
            part = rows[begin : begin + self._batch]
            yield "\n".join(part) + "\n" if self._lines else f"[{','.join(part)}]"

    def _send(self, part: str, about: Mapping[str, str]) -> None:
        import httpx

        kind = "application/x-ndjson" if self._lines else "application/json"
        url, own = secrets.filled_url(self._url), self._filled()
        if self._client is None:
            self._client = httpx.Client(timeout=self._timeout, follow_redirects=False)
        try:
            answer = self._client.post(url, content=part.encode(), headers={"Content-Type": kind, **own, **about})
        except (httpx.InvalidURL, httpx.UnsupportedProtocol) as error:
            raise SpecRefused(self._hidden(f"{self!r}: {error}")) from None
        except httpx.HTTPError as error:
            raise Unreachable(self._hidden(f"{self!r}: {type(error).__name__}: {error}")) from None
        if not answer.is_success:
            raise self._failure(answer, about)
        self._has_written = True

    def _filled(self) -> dict[str, str]:
        """The user's headers with their secrets. Raises SpecRefused for an invalid header, without its value."""
        headers = secrets.filled(self._headers)
        for name, value in headers.items():
            if not NAME.fullmatch(name):
                raise SpecRefused(f"{self!r}: {name!r} is not a header name")
            if not VALUE.fullmatch(value):
                raise SpecRefused(
                    f"{self!r}: the value of header {name!r} has a line break, a blank at an end or a character beyond ASCII"
                )
        return headers

    def _failure(self, answer: httpx.Response, about: Mapping[str, str]) -> Exception:
        """The error for an unsuccessful answer."""
        status, words = answer.status_code, one_line(self._hidden(answer.text)[:SHOWN])
        summary = f"{self!r} answers {status} to part {about['Ferry-Part']} of epoch {about['Ferry-Epoch']}"
        text = f"{summary}: {words}" if words else summary
        if status >= 500 or status in AGAIN:
            self._not_before = time.monotonic() + _retry_seconds(answer.headers.get("Retry-After", ""))
            return Unreachable(text)
        if status in RIGHTS:
            return Unreachable(text) if self._has_written else SpecRefused(text)
        if answer.is_redirect:
            return SpecRefused(f"{summary}, a redirect to another URL: give that URL")
        if status == 413:
            return DataRefused(f"{text}; send fewer rows per request, batch={max(self._batch // 4, 1)}")
        return Final(text)

    def _hidden(self, text: str) -> str:
        return secrets.masked(text, [self._url, *self._headers.values()])


def _retry_seconds(header: str) -> float:
    """The seconds of a Retry-After header. 0 for a date, which is ignored."""
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
    """POST rows as JSON objects to a URL, at least once.

    Each request has the header Idempotency-Key. A repeated request, from this driver or its successor, has the same key and
    the same rows, so a receiver that remembers keys gets each row exactly once. Each request also has the headers
    `Ferry-Epoch` and `Ferry-Part` ("2/3"). The driver sends the requests, one after the other.

    Parameters:
        url: address of the receiver. A login or token in it is a reference to an environment variable:
            "https://${LOGIN}@host/rows".
        batch: greatest number of rows in a request.
        headers: further headers. A secret is a reference to an environment variable: {"Authorization": "Bearer ${TOKEN}"}.
        timeout: longest silence of the receiver, before and within its answer: text such as "30s", or a timedelta.
        format: "json" for an array of objects, "lines" for one object per line (application/x-ndjson).
        name: name of the sink in its job, a part of its keys. None: the last part of the URL's path.
    Returns: a sink.
    Raises: SpecRefused, if an argument is invalid.
    Example:
        >>> output = counts.sink(ferry.http("https://shop.example/counts", headers={"Authorization": "Bearer ${TOKEN}"}))
    """
    require_name(url, "http: url")
    if not url.startswith(("http://", "https://")) and not environment.is_reference(url):
        raise SpecRefused(f"http: url {secrets.shown_place(url)!r}; give https://HOST/PATH")
    secrets.require_no_login(url, "http: url")
    if not isinstance(batch, int) or isinstance(batch, bool) or batch < 1:
        raise SpecRefused(f"http: batch={batch!r}; it is the greatest number of rows in a request, at least 1")
    if format not in ("json", "lines"):
        raise SpecRefused(f'http: format={format!r}; it is "json" or "lines"')
    if name is not None:
        require_name(name, "http: name=")
    checked = secrets.require_references(headers, "http: headers")
    seconds = milliseconds(timeout, "http: timeout") / 1000
    if seconds <= 0:
        raise SpecRefused(f"http: timeout={timeout!r}; it must be positive")
    last = secrets.shown_url(url).partition("://")[2].rstrip("/").rpartition("/")[2]
    return HttpSink(url, batch, checked, seconds, format == "lines", name or last or "http")
