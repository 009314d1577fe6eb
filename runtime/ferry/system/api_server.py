"""Serves an API to clients with a token: an ASGI application (FastAPI's) in a thread, with or without TLS.

For processes that answer with documents; `monitoring` serves plain metrics and health without further imports.
"""

from __future__ import annotations

import ssl
import threading
from collections.abc import Awaitable, Callable, Container, MutableMapping
from typing import Any

import uvicorn

from ferry.contract import bearer
from ferry.contract.addresses import netloc
from ferry.system.sockets import listening

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Scope]]
Send = Callable[[Scope], Awaitable[None]]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]
"""As ASGI defines it."""

THREAD = "api"
"""Name of the thread that serves."""

IDLE_SECONDS = 75
"""Keep-alive time of an idle connection: clients close theirs earlier, and never use a closed one."""

END_SECONDS = 3.0
"""How long `close` waits for the thread."""


def guarded(application: Application, token: str, free: Container[str] = ()) -> Application:
    """The application behind a token check; 401 without the token, except for the paths in `free`.

    The check comes first: no further byte of an unauthorized request is read.
    """

    async def checked(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan" or scope["path"] in free or bearer.is_shown(token, _authorization(scope)):
            return await application(scope, receive, send)
        answer = (bearer.CHALLENGE, ("content-type", "text/plain"), ("content-length", str(len(bearer.REFUSED))))
        headers = [(name.lower().encode(), value.encode()) for name, value in answer]
        await send({"type": "http.response.start", "status": 401, "headers": headers})
        await send({"type": "http.response.body", "body": bearer.REFUSED})

    return checked


def _authorization(scope: Scope) -> str:
    found = [value for name, value in scope["headers"] if name == b"authorization"]
    return found[0].decode("latin-1") if len(found) == 1 else ""


class ApiServer:
    """Serves on a thread of its own until it is closed."""

    def __init__(
        self, application: Application, address: tuple[str, int], context: ssl.SSLContext | None = None
    ) -> None:
        """Listen at (host, port), 0 for any free one; with a context over TLS. Raises OSError when the port is
        taken."""
        self._listener = listening(*address)
        scheme = "http" if context is None else "https"
        self.url = f"{scheme}://{netloc(address[0], self._listener.getsockname()[1])}"
        config = uvicorn.Config(
            application,
            log_config=None,
            log_level="warning",
            access_log=False,
            lifespan="off",
            ws="none",
            timeout_graceful_shutdown=1,
            timeout_keep_alive=IDLE_SECONDS,
        )
        config.ssl_context_factory = (lambda *_: context) if context is not None else None
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._server.run, args=([self._listener],), name=THREAD, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End the server."""
        self._server.should_exit = True
        self._thread.join(END_SECONDS)
        self._listener.close()
