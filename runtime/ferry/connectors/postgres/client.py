"""PostgreSQL's client: addresses, connections, and the meaning of errors. The only import of psycopg."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ferry import environment
from ferry.connectors import secrets
from ferry.connectors.marked_sinks import Disallowed
from ferry.contract.errors import Final, SpecRefused, Unreachable
from ferry.contract.one_line import one_line

DEFAULTS = {
    "connect_timeout": "10",
    "application_name": "ferry",
    "keepalives_idle": "10",
    "keepalives_interval": "5",
    "keepalives_count": "3",
    "tcp_user_timeout": "30000",
}
"""Default options of a connection, with timeouts that detect a server that does not answer."""


def require(connector: str = "postgres") -> None:
    """Raise SpecRefused if the client's library, which the connector needs, is not installed."""
    try:
        import psycopg  # noqa: F401
    except ImportError as missing:
        raise SpecRefused(f"{connector}: the package psycopg is not installed: ferry-stream[postgres]") from missing


class PostgresPlace:
    """The address of a database and the options of connections. Secrets are references to environment variables."""

    def __init__(self, dsn: str) -> None:
        """Check the address. Raises SpecRefused."""
        self._whole = environment.is_reference(dsn)
        self._dsn = dsn
        self._options: dict[str, str] = {} if self._whole else _parsed(dsn, hide=False)
        secrets.require_references(self._options, "postgres: option")

    @property
    def shown(self) -> str:
        """The address without secrets."""
        if self._whole:
            return self._dsn
        host, port, name = (self._options.get(option, "") for option in ("host", "port", "dbname"))
        return f"{host}{f':{port}' if port else ''}/{name}"

    def connect(self) -> Any:
        """A new connection. Raises Unreachable, or SpecRefused if a variable is not set."""
        import psycopg

        options = _parsed(environment.filled(self._dsn), hide=True) if self._whole else secrets.filled(self._options)
        with self.errors():
            # No prepared statements: a pooler that gives each transaction another connection would lose them.
            return psycopg.connect(**{**DEFAULTS, **options}, prepare_threshold=None)

    @contextmanager
    def errors(self) -> Iterator[None]:
        """Translate the library's errors into Ferry's errors, without values of rows and secrets."""
        import psycopg

        try:
            yield
        except psycopg.Error as error:
            words = one_line(error.diag.message_primary or str(error))
            text = secrets.masked(words, [self._dsn, *self._options.values()])
            column = f", column {error.diag.column_name!r}" if error.diag.column_name else ""
            raise _kind(error)(
                f"postgres {self.shown}: {type(error).__name__}: {text}{column}{_advice(error)}"
            ) from None


def _parsed(dsn: str, hide: bool) -> dict[str, str]:
    import psycopg
    from psycopg.conninfo import conninfo_to_dict

    try:
        return {name: str(value) for name, value in conninfo_to_dict(dsn).items()}
    except psycopg.Error:
        wrong = "the variable's value" if hide else repr(secrets.shown_place(dsn))
        wanted = "postgresql://USER:${PG_PASSWORD}@HOST/DATABASE, or host=HOST dbname=DATABASE"
        raise SpecRefused(f"postgres: {wrong} is not the address of a database; write {wanted}") from None


def _kind(error: Any) -> type[Exception]:
    """Ferry's class for an error of the library."""
    import psycopg

    if isinstance(error, psycopg.errors.CardinalityViolation | psycopg.DataError | psycopg.IntegrityError):
        return Final
    if isinstance(error, psycopg.ProgrammingError):
        return Disallowed
    return Unreachable


def _advice(error: Any) -> str:
    import psycopg

    if isinstance(error, psycopg.errors.CardinalityViolation):
        return (
            ". Rows of one epoch have the same key: name more columns in key=, or choose the row to keep with latest="
        )
    if isinstance(error, psycopg.errors.InvalidColumnReference) and "ON CONFLICT" in str(error):
        return ". ON CONFLICT needs a unique index, or a primary key, of exactly the columns of key="
    if isinstance(error, psycopg.errors.UntranslatableCharacter) or "NUL (0x00)" in str(error):
        return r". PostgreSQL does not store the character NUL: remove \u0000 from texts, in .map_batches(...)"
    return ""
