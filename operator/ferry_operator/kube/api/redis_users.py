"""The users of runs in Redis: each run has one user with one password, the names of the run, and few commands.

A run cannot send scripts: it calls the scripts that the operator has loaded. A run that takes more than its share loses its
user for some time. All of it is lost with the data of Redis, and made again.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from ferry.contract import places, registry_scripts
from ferry_operator.kube.api.redis_connection import RedisConnection, RedisRefusal, database, where

log = logging.getLogger("ferry.operator")

COMMANDS = (
    "ping", "get", "set", "del", "hget", "hset", "hdel", "hincrby", "zadd", "zrangebyscore", "time", "evalsha", "multi",
    "exec", "discard",
)  # fmt: skip
"""Commands of the runtime, and of its scripts, which have the rights of their caller."""

WITHOUT_SECONDS = 600.0
"""Time for which a run is without its user."""

STRAY_SECONDS = 300.0
"""A user without a job and without a connection is deleted after this time: its job was deleted without an operator."""

CLOSE_SECONDS = 300.0
"""The port for clear text is closed when no run has used it for this time: a new operator learns the runs one by one."""

SWEEP_SECONDS = 60.0
"""Between two searches for users without a job."""

WATCH_SECONDS = 0.1
"""Time for which the commands of all clients are counted, while Redis is busy."""

BATCH = 1000
"""Keys of one step of a scan."""


class RunShare(NamedTuple):
    """The share of one run. The largest job of the tests takes a hundredth."""

    bytes: int = 16 << 20
    keys: int = 20_000
    connections: int = 2_000
    busy: float = 0.7
    """use of the processor above which the commands are counted"""
    share: float = 0.6
    """of all commands, while Redis is busy"""


@dataclass(slots=True)
class _Growth:
    """A number that is searched for its cause when it has grown by a step since the last search without a result."""

    step: float
    fine: float = 0.0

    def suspicious(self, now: float) -> bool:
        """Whether it has grown."""
        self.fine = min(self.fine, now)
        return now > self.fine + self.step


@dataclass(slots=True)
class RunUsers:
    """The users of one installation. `tend` is called by one thread."""

    tag: str
    """of the installation: several installations may share a Redis"""
    url: str
    bounds: RunShare = field(default_factory=RunShare)
    clear_port: int = 0
    """port for clear text of the chart's Redis, open while a run needs it; 0: of another Redis nothing is changed"""
    wanted: dict[str, str] = field(default_factory=dict)
    """password by run"""
    clear: set[str] = field(default_factory=set)
    """runs with a process that knows no other port"""
    without: dict[str, tuple[float, str]] = field(default_factory=dict)
    """runs without a user: the time at which they get it back, and the reason in words"""
    _made: dict[str, str] = field(default_factory=dict)
    _server: str = ""
    """the life of the server; another one has no users"""
    _memory: _Growth = field(init=False)
    _keys: _Growth = field(init=False)
    _clients: _Growth = field(init=False)
    _processor: tuple[float, float] | None = None
    """seconds of the processor that Redis has used, and the time of this number"""
    _busiest: str | None = None
    """the run that took more than its share of the commands, at the last look"""
    _strays: dict[str, float] = field(default_factory=dict)
    """users without a job: since when"""
    _swept_at: float = field(default_factory=time.monotonic)
    _clear_at: float = field(default_factory=time.monotonic)
    """when a run last needed the port for clear text"""

    def __post_init__(self) -> None:
        """A run is searched for before it can take its share twice."""
        self._memory = _Growth(self.bounds.bytes / 2)
        self._keys = _Growth(self.bounds.keys / 2)
        self._clients = _Growth(self.bounds.connections / 2)

    def user(self, run: str) -> str:
        """Name of the user of a run."""
        return user_name(self.tag, run)

    def tend(self, redis: RedisConnection, now: float) -> bool:
        """Make missing users, and take the users of runs that take too much; returns whether to look again soon.

        Raises OSError and RedisRefusal.
        """
        info = _info(redis)
        if info.get("run_id", "") != self._server:
            self._begin(redis, now)
            self._server = info.get("run_id", "")
        self._open_or_close(redis, info, now)
        for run in [run for run, (until, _) in self.without.items() if now >= until]:
            del self.without[run]
        self._make(redis)
        greedy = list(self._greedy(redis, info, now))
        for run, why in greedy:
            self._take(redis, run, why, now)
        if now - self._swept_at > SWEEP_SECONDS:
            self._swept_at = now
            if self.clear_port:  # a renewed certificate: the server reads its files again, and connections go on
                redis.call("CONFIG", "SET", "tls-cert-file", redis.call("CONFIG", "GET", "tls-cert-file")[1])
            self._sweep(redis, now)
        return bool(greedy) or self._busiest is not None

    def forget(self, redis: RedisConnection, run: str) -> None:
        """Delete the user and the entries of a run; heartbeats expire. Raises OSError and RedisRefusal."""
        for answer in redis.calls([["ACL", "DELUSER", self.user(run)], ["DEL", *places.lasting(run)]]):
            _checked(answer)
        self._made.pop(run, None)
        self.without.pop(run, None)

    def _open_or_close(self, redis: RedisConnection, info: dict[str, str], now: float) -> None:
        """Listen for clear text exactly while a run needs it. A server that starts does not listen for it."""
        if self.clear:
            self._clear_at = now
        needed, is_open = now - self._clear_at < CLOSE_SECONDS, info.get("tcp_port") == str(self.clear_port)
        if self.clear_port and is_open != needed and (self.clear or is_open):
            redis.call("CONFIG", "SET", "port", self.clear_port if needed else 0)
            runs = f"for runs that began with it: {', '.join(sorted(self.clear)[:5])}" if needed else "no run needs it"
            verb = "open" if needed else "closed"
            log.info("Redis at %s: the port %d for clear text is %s, %s", where(self.url), self.clear_port, verb, runs)

    # ---- users
    def _begin(self, redis: RedisConnection, now: float) -> None:
        """Load the scripts, and learn which users another operator has turned off."""
        for answer in redis.calls([["SCRIPT", "LOAD", text] for text in registry_scripts.ALL]):
            _checked(answer)
        self._made.clear()
        for line in _texts(redis.call("ACL", "LIST")):
            words = line.split(" ")
            run = self._run_of(words[1])
            if run is not None and "off" in words[2:4] and run not in self.without:
                self._withdraw(run, "it took more than its share", now)

    def _make(self, redis: RedisConnection) -> None:
        missing = [
            (run, password)
            for run, password in [*self.wanted.items()]
            if self._made.get(run) != password and run not in self.without
        ]
        number = database(self.url)
        more = [f"+select|{number}"] if number else []
        rights = ["-@all", *(f"+{command}" for command in COMMANDS), *more]
        commands = []
        for run, password in missing:
            names = ["resetkeys", f"~{places.prefix(run)}*", "resetchannels"]
            commands.append(["ACL", "SETUSER", self.user(run), "reset", "on", f">{password}", *names, *rights])
        for (run, password), answer in zip(missing, redis.calls(commands), strict=True):
            _checked(answer)
            self._made[run] = password

    def _take(self, redis: RedisConnection, run: str, why: str, now: float) -> None:
        """Turn the user off, close its connections, delete its entries."""
        user = self.user(run)
        self._withdraw(run, why, now)
        self._made.pop(run, None)
        if run in self.wanted or user in _texts(redis.call("ACL", "USERS")):
            redis.call("ACL", "SETUSER", user, "off")
            redis.call("CLIENT", "KILL", "USER", user)
        cursor = "0"
        while True:
            cursor, keys = redis.call("SCAN", cursor, "MATCH", f"{places.prefix(run)}*", "COUNT", BATCH)
            if keys:
                redis.call("UNLINK", *keys)
            if cursor == "0":
                break
        log.warning("run %s: %s", run, self.without[run][1])

    def _withdraw(self, run: str, why: str, now: float) -> None:
        until = datetime.now(UTC) + timedelta(seconds=WITHOUT_SECONDS)
        self.without[run] = now + WITHOUT_SECONDS, f"the run has no Redis until {until:%H:%M} UTC: {why}"

    def _sweep(self, redis: RedisConnection, now: float) -> None:
        """Delete users of jobs that are gone."""
        there = [run for user in _texts(redis.call("ACL", "USERS")) if (run := self._run_of(user)) is not None]
        strays = [run for run in there if run not in self.wanted]
        connected = set(_users_of(_clients(redis))) if strays else set()
        self._strays = {run: self._strays.get(run, now) for run in strays if self.user(run) not in connected}
        for run in [run for run, since in self._strays.items() if now - since > STRAY_SECONDS]:
            log.info("run %s is gone: its user in Redis is deleted", run)
            self.forget(redis, run)
            del self._strays[run]

    def _run_of(self, user: str) -> str | None:
        start = self.user("")
        return user.removeprefix(start) if user.startswith(start) else None

    # ---- shares
    def _greedy(self, redis: RedisConnection, info: dict[str, str], now: float) -> Iterable[tuple[str, str]]:
        """Runs with more than their share, and what they take."""
        memory, clients = float(info.get("used_memory", 0)), float(info.get("connected_clients", 0))
        keys = float(redis.call("DBSIZE"))
        if self._memory.suspicious(memory) or self._keys.suspicious(keys):
            greedy = self._large(redis)
            if greedy is not None:
                yield greedy
                return  # what it held is deleted, and then everything is measured again
            self._memory.fine, self._keys.fine = memory, keys
        if self._clients.suspicious(clients):
            greedy = self._connected(redis)
            if greedy is not None:
                yield greedy
                return
            self._clients.fine = clients
        used = float(info.get("used_cpu_sys", 0)) + float(info.get("used_cpu_user", 0))
        before, self._processor = self._processor, (used, now)
        busy = before is not None and now > before[1] and (used - before[0]) / (now - before[1]) > self.bounds.busy
        run = self._busy(redis) if busy else None
        again, self._busiest = run is not None and run == self._busiest, run
        if run is not None and again:
            self._busiest = None
            yield run, f"it sent more than {self.bounds.share:.0%} of all commands while Redis was busy"

    def _large(self, redis: RedisConnection) -> tuple[str, str] | None:
        """A run with too many keys or bytes. The scan ends with the first one: no other client waits for the rest."""
        size, count, cursor = Counter[str](), Counter[str](), "0"
        while True:
            cursor, keys = redis.call("SCAN", cursor, "COUNT", BATCH)
            for key, taken in zip(keys, redis.calls([["MEMORY", "USAGE", key] for key in keys]), strict=True):
                parts = key.split(":", 2)
                if len(parts) == 3 and parts[0] == "ferry" and isinstance(taken, int):
                    size[parts[1]] += taken
                    count[parts[1]] += 1
            for run in {key.split(":", 2)[1] for key in keys if key.count(":") >= 2}:
                if size[run] > self.bounds.bytes:
                    return run, f"its entries took more than {self.bounds.bytes >> 20} MiB"
                if count[run] > self.bounds.keys:
                    return run, f"it had more than {self.bounds.keys} entries"
            if cursor == "0":
                return None

    def _connected(self, redis: RedisConnection) -> tuple[str, str] | None:
        """A run with too many connections."""
        for user, count in Counter(_users_of(_clients(redis))).most_common(1):
            run = self._run_of(user)
            if run is not None and count > self.bounds.connections:
                return run, f"it had more than {self.bounds.connections} connections"
        return None

    def _busy(self, redis: RedisConnection) -> str | None:
        """The run with more than its share of the commands, None: no run."""
        users = _addresses(_clients(redis))
        counted = Counter[str]()
        with RedisConnection(self.url) as monitor:
            monitor.call("MONITOR")
            end = time.monotonic() + WATCH_SECONDS
            while time.monotonic() < end:
                line = str(monitor.read())
                counted[line.partition(" [")[2].partition("]")[0].partition(" ")[2]] += 1 + len(line) // 1000
        users |= _addresses(_clients(redis))
        by_run = Counter[str]()
        for address, number in counted.items():
            if (run := self._run_of(users.get(address, ""))) is not None:
                by_run[run] += number
        for run, number in by_run.most_common(1):
            if number > self.bounds.share * counted.total():
                return run
        return None


def user_name(tag: str, run: str) -> str:
    """Name of the user of a run of an installation."""
    return f"ferry.{tag}.{run}"


def _info(redis: RedisConnection) -> dict[str, str]:
    lines = str(redis.call("INFO")).splitlines()
    return dict(line.split(":", 1) for line in lines if ":" in line)


def _clients(redis: RedisConnection) -> list[dict[str, str]]:
    lines = str(redis.call("CLIENT", "LIST")).splitlines()
    return [dict(word.split("=", 1) for word in line.split(" ") if "=" in word) for line in lines]


def _users_of(clients: Iterable[dict[str, str]]) -> list[str]:
    return [client.get("user", "") for client in clients]


def _addresses(clients: Iterable[dict[str, str]]) -> dict[str, str]:
    return {client.get("addr", ""): client.get("user", "") for client in clients}


def _texts(answer: object) -> list[str]:
    return [str(text) for text in answer] if isinstance(answer, list) else []


def _checked(answer: object) -> None:
    if isinstance(answer, RedisRefusal):
        raise answer
