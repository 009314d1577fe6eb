"""Kafka's client library: its clients, its errors as Ferry's own, ends of partitions. The only place that imports it.

A broker that gives no answer is `Unreachable`, and so is one that does not allow any more what it has allowed. Secrets come
from the environment of the process that uses them, when it does. Must never commit an offset of a source: positions are the
job's.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any

from ferry.connectors.kafka.place import KafkaPlace
from ferry.contract.errors import FerryError, SpecRefused, Unreachable

ANSWER_SECONDS = 5.0
"""What brokers are asked they answer within this time, or count as unreachable."""
STALE_SECONDS = 60.0
"""After so long without an answer it is asked through a new client: the brokers that the old one knows may be no more."""


def library() -> None:
    """Raise SpecRefused where the client's library is not installed."""
    try:
        import confluent_kafka  # noqa: F401
    except ImportError as missing:
        raise SpecRefused("kafka: the package confluent-kafka is not installed: ferry-stream[kafka]") from missing


class NoTopic(Unreachable):
    """The brokers know no topic of this name, now: after a start of theirs, they may know it a little later."""


class NoLeader(Unreachable):
    """No broker leads a partition, or none says so, as to a client without rights."""


class NotAllowed(Unreachable):
    """The brokers do not allow it, now: rights are taken away, and given back, while jobs run."""


class LastError:
    """The error that a client has reported of its own accord: why it reaches no broker, as a rule."""

    def __init__(self) -> None:
        self._last = ""

    def __call__(self, error: Any) -> None:
        from confluent_kafka import KafkaError

        if error.code() != KafkaError._ALL_BROKERS_DOWN:  # which does not say why
            self._last = error.str()

    def beside(self, text: str) -> str:
        """The text, and the error that came last."""
        return f"{text} ({self._last})" if self._last and self._last not in text else text


def failure(error: Any, what: str, last_error: LastError | None = None) -> FerryError:
    """The error of ours for one of the library's."""
    from confluent_kafka import KafkaError

    rights = (
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.GROUP_AUTHORIZATION_FAILED,
        KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        KafkaError.CLUSTER_AUTHORIZATION_FAILED,
    )
    kinds: dict[int, type[FerryError]] = {
        **dict.fromkeys(rights, NotAllowed),
        KafkaError._INVALID_ARG: SpecRefused,
        KafkaError.UNKNOWN_TOPIC_OR_PART: NoTopic,
        KafkaError._UNKNOWN_TOPIC: NoTopic,
        KafkaError._NOENT: NoLeader,
    }
    kind, text = kinds.get(error.code(), Unreachable), f"{what}: {error.str()}"
    return kind(last_error.beside(text) if last_error is not None and kind is Unreachable else text)


@contextmanager
def mapped_errors(error_of: Callable[[Any], FerryError]) -> Iterator[None]:
    """Around calls of the library: raises our errors in place of its own."""
    from confluent_kafka import KafkaException

    try:
        yield
    except KafkaException as error:
        raise error_of(error.args[0]) from error


def consumer(place: KafkaPlace, more: Mapping[str, Any], last_error: LastError) -> Any:
    """A client that reads, or knows what is committed for its group. Raises SpecRefused for an option that cannot be."""
    from confluent_kafka import Consumer

    with mapped_errors(lambda error: failure(error, f"kafka {place.servers}")):
        return Consumer(place.settings({**more, "error_cb": last_error}))


def producer(place: KafkaPlace, more: Mapping[str, Any], last_error: LastError) -> Any:
    """A client that writes. Raises SpecRefused for an option that cannot be."""
    from confluent_kafka import Producer

    settings = place.settings({**more, "error_cb": last_error})
    with mapped_errors(lambda error: failure(error, f"kafka {place.servers}")):
        return Producer({name: value for name, value in settings.items() if name != "isolation.level"})


def at(topic: str, partition: int, *more: int | str) -> Any:
    """A place in a topic: a partition, an offset in it, and a text that is committed with that."""
    from confluent_kafka import TopicPartition

    return TopicPartition(topic, partition, *more)


def is_end(error: Any) -> bool:
    """Whether what comes in the place of a record says that the partition ends here."""
    from confluent_kafka import KafkaError

    return bool(error.code() == KafkaError._PARTITION_EOF)


def is_out_of_range(error: Any) -> bool:
    """Whether the brokers do not have the records that were asked for."""
    from confluent_kafka import KafkaError

    return error.code() in (KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE)


def is_of_group(error: Any) -> bool:
    """Whether a reader may not use the group that the library wants, and that reading does not need."""
    from confluent_kafka import KafkaError

    return bool(error.code() == KafkaError.GROUP_AUTHORIZATION_FAILED)


def advice(error: Any) -> str:
    """What to do about a record that the brokers never take, alone or with others; empty: the error is none about that."""
    from confluent_kafka import KafkaError

    size = "Make it smaller, or let brokers and topic take it (max.message.bytes; message.max.bytes in options=)"
    return {
        KafkaError.MSG_SIZE_TOO_LARGE: size,
        KafkaError.RECORD_LIST_TOO_LARGE: size,
        KafkaError.INVALID_RECORD: "A compacted topic takes no row without a key (key=)",
    }.get(error.code(), "")


def is_purged(error: Any) -> bool:
    """Whether a record was not written because another one has failed."""
    from confluent_kafka import KafkaError

    return error.code() in (KafkaError._PURGE_QUEUE, KafkaError._PURGE_INFLIGHT)


def is_abort(error: Any) -> bool:
    """Whether a transaction has failed, and why is in the report of a record's delivery."""
    from confluent_kafka import KafkaError

    return bool(error.txn_requires_abort() or error.code() == KafkaError._STATE)


class TopicEnds:
    """Asks the brokers of one topic about its partitions. Its connection is kept."""

    def __init__(self, place: KafkaPlace, topic: str) -> None:
        self._place = place
        self._topic = topic
        self._admin: Any = None
        self._last_error = LastError()
        self._answered = 0.0

    def partitions(self) -> tuple[str, list[int]]:
        """(id of the topic, its partitions). Raises NoTopic."""
        from confluent_kafka import TopicCollection

        asked = self._client().describe_topics(TopicCollection([self._topic]), request_timeout=ANSWER_SECONDS)
        found = self._answer(asked[self._topic])
        return str(found.topic_id), sorted(one.id for one in found.partitions)

    def earliest(self, partitions: Sequence[int]) -> dict[int, int]:
        """Offset of the first record that each partition has."""
        from confluent_kafka.admin import OffsetSpec

        return self._offsets(partitions, OffsetSpec.earliest())

    def latest(self, partitions: Sequence[int]) -> dict[int, int]:
        """Offset behind the last record of each that may be read: with read_committed, before the oldest transaction."""
        from confluent_kafka.admin import OffsetSpec

        return self._offsets(partitions, OffsetSpec.latest())

    def _offsets(self, partitions: Sequence[int], spec: Any) -> dict[int, int]:
        from confluent_kafka import IsolationLevel

        if not partitions:
            return {}
        committed = self._place.isolation == "read_committed"
        level = IsolationLevel.READ_COMMITTED if committed else IsolationLevel.READ_UNCOMMITTED
        asked = self._client().list_offsets(
            {at(self._topic, one): spec for one in partitions},
            isolation_level=level,
            request_timeout=ANSWER_SECONDS,
        )
        try:
            return {where.partition: int(self._answer(one).offset) for where, one in asked.items()}
        except NoLeader:
            self.partitions()  # Raises NotAllowed, if that is why.
            raise

    def _client(self) -> Any:
        if self._admin is None or time.monotonic() - self._answered > STALE_SECONDS:
            from confluent_kafka.admin import AdminClient

            settings, self._answered = self._place.settings({"error_cb": self._last_error}), time.monotonic()
            with mapped_errors(lambda error: failure(error, f"kafka {self._place.servers}")):
                self._admin = AdminClient({k: v for k, v in settings.items() if k != "isolation.level"})
        return self._admin

    def _answer(self, asked: Future[Any]) -> Any:
        what = f"kafka {self._place.servers}, topic {self._topic!r}"
        try:
            with mapped_errors(lambda error: self._failure(error, what)):
                answer, self._answered = asked.result(2 * ANSWER_SECONDS), time.monotonic()
            return answer
        except TimeoutError as error:
            raise Unreachable(f"{what}: no answer for {2 * ANSWER_SECONDS:g} s") from error

    def _failure(self, error: Any, what: str) -> FerryError:
        self._admin.poll(0)
        return failure(error, what, self._last_error)
