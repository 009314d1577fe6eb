"""Addresses of Kafka brokers and options of clients, with references to secrets. Must never import Kafka's library."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ferry import environment
from ferry.contract.errors import SpecRefused

FIXED = {"bootstrap.servers", "enable.auto.commit", "enable.partition.eof", "auto.offset.reset", "transactional.id"}
"""Options that users cannot set, because exactly-once depends on them."""

CLIENT = {
    "log_level": 2,
    "metadata.recovery.strategy": "none",
    "reconnect.backoff.max.ms": 1_000,
}
"""Default options of every client. A client that loses all brokers for a moment keeps its metadata: with the library's
default, to bootstrap again, an open transaction never ends."""

SECRETS = ("password", "secret", "ssl.key.pem")
"""Endings of the names of options with secret values."""


@dataclass(frozen=True, slots=True)
class KafkaPlace:
    """Addresses of brokers and options of clients. Secrets are references to environment variables, "${NAME}"."""

    servers: str
    options: tuple[tuple[str, Any], ...] = ()

    @classmethod
    def of(cls, servers: str, options: Mapping[str, Any] | None) -> KafkaPlace:
        """A place with checked arguments. Raises SpecRefused."""
        if not servers or not isinstance(servers, str):
            raise SpecRefused(f"kafka: servers {servers!r}; give host:port, several separated by commas")
        checked = dict(options or {})
        if fixed := sorted(FIXED & checked.keys()):
            raise SpecRefused(f"kafka: options {', '.join(fixed)} are set by Ferry; leave them out")
        for name, value in checked.items():
            if name.endswith(SECRETS) and not environment.is_reference(value):
                raise SpecRefused(
                    f"kafka: option {name} is a secret: give the name of an environment variable, {name!r}: '${{NAME}}'"
                )
        return cls(servers, tuple(sorted(checked.items())))

    def with_options(self, more: Mapping[str, Any]) -> KafkaPlace:
        """The same place with these options added or replaced."""
        return KafkaPlace(self.servers, tuple(sorted({**dict(self.options), **more}.items())))

    def settings(self, more: Mapping[str, Any]) -> dict[str, Any]:
        """The settings of a client of this process. Raises SpecRefused if a variable is not set."""
        own = {name: environment.filled(value) for name, value in self.options}
        return {**CLIENT, **more, **own, "bootstrap.servers": self.servers}

    @property
    def isolation(self) -> str:
        """The isolation level of readers: read_committed, unless the options set another."""
        return str(dict(self.options).get("isolation.level", "read_committed"))
