"""Where a Kafka is, and how its clients are set; secrets are named, never held. Must never import Kafka's library."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ferry import environment
from ferry.contract.errors import SpecRefused

FIXED = {"bootstrap.servers", "enable.auto.commit", "enable.partition.eof", "auto.offset.reset", "transactional.id"}
"""What options cannot set: exactly once hangs on it."""

CLIENT = {
    "log_level": 2,
    "metadata.recovery.strategy": "none",
    "reconnect.backoff.max.ms": 1_000,
}
"""Of every client, unless the options say otherwise. One that loses all brokers for a moment keeps what it knows of them:
with the library's own way, to begin anew, a transaction under way never ends."""

SECRETS = ("password", "secret", "ssl.key.pem")
"""What the names of options end with whose values are secret."""


@dataclass(frozen=True, slots=True)
class KafkaPlace:
    """Where the brokers are, and options of the client; secrets are names of environment variables, as "${NAME}"."""

    servers: str
    options: tuple[tuple[str, Any], ...] = ()

    @classmethod
    def of(cls, servers: str, options: Mapping[str, Any] | None) -> KafkaPlace:
        """Checked. Raises SpecRefused."""
        if not servers or not isinstance(servers, str):
            raise SpecRefused(f"kafka: servers {servers!r}; give host:port, several with commas between")
        given = dict(options or {})
        if fixed := sorted(FIXED & given.keys()):
            raise SpecRefused(f"kafka: options {', '.join(fixed)} are set by Ferry; leave them out")
        for name, value in given.items():
            if name.endswith(SECRETS) and not environment.is_reference(value):
                raise SpecRefused(
                    f"kafka: option {name} is a secret: give the name of an environment variable, {name!r}: '${{NAME}}'"
                )
        return cls(servers, tuple(sorted(given.items())))

    def with_options(self, more: Mapping[str, Any]) -> KafkaPlace:
        """The same place, with these options in place of those of their names."""
        return KafkaPlace(self.servers, tuple(sorted({**dict(self.options), **more}.items())))

    def settings(self, more: Mapping[str, Any]) -> dict[str, Any]:
        """For a client of this process. Raises SpecRefused when a variable is not set."""
        given = {name: environment.filled(value) for name, value in self.options}
        return {**CLIENT, **more, **given, "bootstrap.servers": self.servers}

    @property
    def isolation(self) -> str:
        """Which records are read: read_committed, unless the options say otherwise."""
        return str(dict(self.options).get("isolation.level", "read_committed"))
