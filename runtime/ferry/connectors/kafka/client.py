"""Kafka's client library: its clients, its errors as Ferry's errors, the ends of partitions. The only import of the library.

A broker that does not answer is `Unreachable`, and so is a broker that has revoked a permission. Each process reads secrets
from its own environment when it creates a client. Must never commit an offset of a source: the job keeps its positions.
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
"""A broker that does not answer a request within this time is unreachable."""

STALE_SECONDS = 60.0
"""After this time without an answer a new client is created, because the brokers known to the old client may be gone."""


def library() -> None:
    """Raise SpecRefused if the client library is not installed."""
    try:
        import confluent_kafka  # noqa: F401
    except ImportError as missing:
        raise SpecRefused("kafka: the package confluent-kafka is not installed: ferry-stream[kafka]") from missing


class NoTopic(Unreachable):
    """The brokers do not know the topic. Brokers that have just started may know it later."""


class NoLeader(Unreachable):
    """A partition has no leader. A client without permissions gets the same answer."""


class NotAllowed(Unreachable):
    """The brokers deny a permission, which an administrator may revoke and grant during a job."""


class LastError:
    """The last error that a client has reported in a callback: usually the reason why it does not reach a broker."""

    def __init__(self) -> None:
        self._last = ""

    def __call__(self, error: Any) -> None:
        from confluent_kafka import KafkaError

        if error.code() != KafkaError._ALL_BROKERS_DOWN:  # an error without a reason
            self._last = error.str()

    def beside(self, text: str) -> str:
        """The text with the last error in brackets."""
        return f"{text} ({self._last})" if self._last and self._last not in text else text


def failure(error: Any, place: str, last_error: LastError | None = None) -> FerryError:
    """Ferry's error for an error of the library. `place`: the begin of the message."""
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
    kind, text = kinds.get(error.code(), Unreachable), f"{place}: {error.str()}"
    return kind(last_error.beside(text) if last_error is not None and kind is Unreachable else text)


@contextmanager
def mapped_errors(error_of: Callable[[Any], FerryError]) -> Iterator[None]:
    """Translate the library's errors into Ferry's errors."""
    from confluent_kafka import KafkaException

    try:
        yield
    except KafkaException as error:
        raise error_of(error.args[0]) from error


def consumer(place: KafkaPlace, more: Mapping[str, Any], last_error: LastError) -> Any:
    """A client that reads records or a group's committed offsets. Raises SpecRefused for an invalid option."""
    from confluent_kafka import Consumer

    with mapped_errors(lambda error: failure(error, f"kafka {place.servers}")):
        return Consumer(place.settings({**more, "error_cb": last_error}))


def producer(place: KafkaPlace, more: Mapping[str, Any], last_error: LastError) -> Any:
    """A client that writes. Raises SpecRefused for an invalid option."""
    from confluent_kafka import Producer

    settings = place.settings({**more, "error_cb": last_error})
    with mapped_errors(lambda error: failure(error, f"kafka {place.servers}")):
        return Producer({name: value for name, value in settings.items() if name != "isolation.level"})


def at(topic: str, partition: int, *more: int | str) -> Any:
    """A place in a topic: a partition, an offset, and the metadata that is committed with the offset."""
    from confluent_kafka import TopicPartition

    return TopicPartition(topic, partition, *more)


def is_end(error: Any) -> bool:
    """Whether an error marks the end of a partition."""
    from confluent_kafka import KafkaError

    return bool(error.code() == KafkaError._PARTITION_EOF)


def is_out_of_range(error: Any) -> bool:
    """Whether the brokers do not have the requested offsets."""
    from confluent_kafka import KafkaError

    return error.code() in (KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE)


def is_of_group(error: Any) -> bool:
    """Whether a reader lacks the permission for its group. The library requires a group, but the reader does not use it."""
    from confluent_kafka import KafkaError

    return bool(error.code() == KafkaError.GROUP_AUTHORIZATION_FAILED)


def advice(error: Any) -> str:
    """The remedy for records that the brokers always refuse, alone or together. Empty for other errors."""
    from confluent_kafka import KafkaError

    size = (
        "Make it smaller, or raise the limits of brokers and topic (max.message.bytes; message.max.bytes in options=)"
    )
    return {
        KafkaError.MSG_SIZE_TOO_LARGE: size,
        KafkaError.RECORD_LIST_TOO_LARGE: size,
        KafkaError.INVALID_RECORD: "A compacted topic refuses rows without a key (key=)",
    }.get(error.code(), "")


def is_purged(error: Any) -> bool:
    """Whether a record was not written because another record has failed."""
    from confluent_kafka import KafkaError

    return error.code() in (KafkaError._PURGE_QUEUE, KafkaError._PURGE_INFLIGHT)


def is_abort(error: Any) -> bool:
    """Whether a transaction has failed. The delivery report of a record has the reason."""
    from confluent_kafka import KafkaError

    return bool(error.txn_requires_abort() or error.code() == KafkaError._STATE)


class TopicEnds:
    """Requests the partitions and offsets of a topic. Keeps its connection."""

    def __init__(self, place: KafkaPlace, topic: str) -> None:
        self._place = place
        self._topic = topic
        self._admin: Any = None
        self._last_error = LastError()
        self._answered = 0.0

    def partitions(self) -> tuple[str, list[int]]:
        """(id of the topic, its partitions). Raises NoTopic."""
        from confluent_kafka import TopicCollection

        answers = self._client().describe_topics(TopicCollection([self._topic]), request_timeout=ANSWER_SECONDS)
        topic = self._answer(answers[self._topic])
        return str(topic.topic_id), sorted(partition.id for partition in topic.partitions)

    def earliest(self, partitions: Sequence[int]) -> dict[int, int]:
        """The offset of each partition's first record."""
        from confluent_kafka.admin import OffsetSpec

        return self._offsets(partitions, OffsetSpec.earliest())

    def latest(self, partitions: Sequence[int]) -> dict[int, int]:
        """The offset after each partition's last readable record; with read_committed, of the oldest open transaction."""
        from confluent_kafka.admin import OffsetSpec

        return self._offsets(partitions, OffsetSpec.latest())

    def _offsets(self, partitions: Sequence[int], spec: Any) -> dict[int, int]:
        from confluent_kafka import IsolationLevel

        if not partitions:
            return {}
        committed = self._place.isolation == "read_committed"
        level = IsolationLevel.READ_COMMITTED if committed else IsolationLevel.READ_UNCOMMITTED
        answers = self._client().list_offsets(
            {at(self._topic, partition): spec for partition in partitions},
            isolation_level=level,
            request_timeout=ANSWER_SECONDS,
        )
        try:
            return {where.partition: int(self._answer(answer).offset) for where, answer in answers.items()}
        except NoLeader:
            self.partitions()  # Raises NotAllowed if a permission is the reason.
            raise

    def _client(self) -> Any:
        if self._admin is None or time.monotonic() - self._answered > STALE_SECONDS:
            from confluent_kafka.admin import AdminClient

            settings, self._answered = self._place.settings({"error_cb": self._last_error}), time.monotonic()
            with mapped_errors(lambda error: failure(error, f"kafka {self._place.servers}")):
                self._admin = AdminClient({k: v for k, v in settings.items() if k != "isolation.level"})
        return self._admin

    def _answer(self, request: Future[Any]) -> Any:
        place = f"kafka {self._place.servers}, topic {self._topic!r}"
        try:
            with mapped_errors(lambda error: self._failure(error, place)):
                answer, self._answered = request.result(2 * ANSWER_SECONDS), time.monotonic()
            return answer
        except TimeoutError as error:
            raise Unreachable(f"{place}: no answer for {2 * ANSWER_SECONDS:g} s") from error

    def _failure(self, error: Any, place: str) -> FerryError:
        self._admin.poll(0)
        return failure(error, place, self._last_error)
