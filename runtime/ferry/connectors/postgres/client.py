"""PostgreSQL's client: where a server is, how it is reached, what its errors mean. The only place that imports psycopg."""

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
"""Of a connection, unless the user says otherwise: who does not answer is known to be away."""


def require(what: str = "postgres") -> None:
    """Raise SpecRefused where the client's library is not installed, which `what` needs."""
    try:
        import psycopg  # noqa: F401
    except ImportError as missing:
        raise SpecRefused(f"{what}: the package psycopg is not installed: ferry-stream[postgres]") from missing


class PostgresPlace:
    """Where the server is, and how it is asked; secrets are names of variables."""

    def __init__(self, dsn: str) -> None:
        """Checked. Raises SpecRefused."""
        self._whole = environment.is_reference(dsn)
        self._dsn = dsn
        self._given: dict[str, str] = {} if self._whole else _parsed(dsn, hide=False)
        secrets.require_references(self._given, "postgres: option")

    @property
    def shown(self) -> str:
        """Without what may be secret."""
        if self._whole:
            return self._dsn
        host, port, name = (self._given.get(one, "") for one in ("host", "port", "dbname"))
        return f"{host}{f':{port}' if port else ''}/{name}"

    def connect(self) -> Any:
        """A connection. Raises Unreachable, or SpecRefused when a variable is not set."""
        import psycopg

        given = _parsed(environment.filled(self._dsn), hide=True) if self._whole else secrets.filled(self._given)
        with self.errors():
            # Prepared statements are known to no pooler that gives each transaction another connection.
            return psycopg.connect(**{**DEFAULTS, **given}, prepare_threshold=None)

    @contextmanager
    def errors(self) -> Iterator[None]:
        """Around calls of the library: raises our errors in place of its own, without values of rows and secrets."""
        import psycopg

        try:
            yield
        except psycopg.Error as error:
            words = one_line(error.diag.message_primary or str(error))
            text = secrets.masked(words, [self._dsn, *self._given.values()])
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
        wrong = "what the variable holds" if hide else repr(secrets.shown_place(dsn))
        wanted = "postgresql://USER:${PG_PASSWORD}@HOST/DATABASE, or host=HOST dbname=DATABASE"
        raise SpecRefused(f"postgres: {wrong} is no address of a database; write {wanted}") from None


def _kind(error: Any) -> type[Exception]:
    """What there is to do about an error of the library."""
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
            ". Rows of one epoch have the same key: name more columns in key=, or say with latest= which of them stays"
        )
    if isinstance(error, psycopg.errors.InvalidColumnReference) and "ON CONFLICT" in str(error):
        return ". ON CONFLICT needs a unique index, or a primary key, of exactly the columns of key="
    if isinstance(error, psycopg.errors.UntranslatableCharacter) or "NUL (0x00)" in str(error):
        return r". PostgreSQL has no character of number 0: take \u0000 out of texts, in .map_batches(...)"
    return ""
