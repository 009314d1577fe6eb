"""A broker of Kafka, as a process that tests start, kill and cut off; and a client of its own that writes and reads topics.

`tests/brokers/setup` has Maven fetch it, once. It asserts nothing itself.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import subprocess
import threading
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicCollection, TopicPartition
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    NewPartitions,
    NewTopic,
    ResourcePatternType,
    ResourceType,
)

BROKERS = Path(__file__).parent / "brokers"
START_SECONDS = 60.0

PROPERTIES = """
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
listeners=PLAINTEXT://127.0.0.1:{own},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=PLAINTEXT://127.0.0.1:{shown}
controller.listener.names=CONTROLLER
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT
log.dirs={directory}/data
auto.create.topics.enable=false
default.replication.factor=1
offsets.topic.replication.factor=1
offsets.topic.num.partitions=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
transaction.state.log.num.partitions=1
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
group.initial.rebalance.delay.ms=0
log.cleaner.dedupe.buffer.size=8388608
num.network.threads=2
num.io.threads=2
background.threads=2
num.recovery.threads.per.data.dir=1
authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer
allow.everyone.if.no.acl.found=true
"""


class Wire:
    """A way to a port of this machine that can be cut: everybody is thrown out, and nobody let in."""

    def __init__(self, port: int) -> None:
        self._to = port
        self._open = True
        self._pairs: list[tuple[socket.socket, socket.socket]] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self) -> None:
        """From now on, until it is healed."""
        self._open = False
        for pair in self._pairs:
            for one in pair:
                _shut(one)
        self._pairs.clear()

    def heal(self) -> None:
        """It lets in again."""
        self._open = True

    def _accept(self) -> None:
        while True:
            near, _ = self._listener.accept()
            try:
                if not self._open:
                    raise OSError("cut")
                far = socket.create_connection(("127.0.0.1", self._to))
            except OSError:
                near.close()
                continue
            self._pairs.append((near, far))
            threading.Thread(target=_carry, args=(near, far), daemon=True).start()


def _carry(near: socket.socket, far: socket.socket) -> None:
    try:
        while True:
            for one in select.select([near, far], [], [])[0]:
                data = one.recv(1 << 18)
                if not data:
                    return
                (far if one is near else near).sendall(data)
    except (OSError, ValueError):
        pass
    finally:
        _shut(near)
        _shut(far)
        near.close()
        far.close()


def _shut(one: socket.socket) -> None:
    with contextlib.suppress(OSError):
        one.shutdown(socket.SHUT_RDWR)


class KafkaBroker:
    """One broker, which clients reach through a wire that can be cut, if it has one; its topics outlive its lives."""

    def __init__(self, directory: Path, *, wired: bool = True) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._directory = directory
        jars = subprocess.run([BROKERS / "setup"], check=True, stdout=subprocess.PIPE, text=True).stdout.strip()
        own, controller = _free(), _free()
        self._wire = Wire(own) if wired else None
        shown = own if self._wire is None else self._wire.port
        self.servers = f"127.0.0.1:{shown}"
        self._own = own
        about = PROPERTIES.format(own=own, controller=controller, shown=shown, directory=directory)
        (directory / "server.properties").write_text(about)
        java = str(Path(os.environ["JAVA_HOME"]) / "bin" / "java") if os.environ.get("JAVA_HOME") else "java"
        options = ["-Xmx256m", "-Xms64m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
        log = f"-Dlog4j2.configurationFile={BROKERS / 'log4j2.properties'}"
        self._java = [java, *options, log, "-cp", f"{jars}/*"]
        self._process: subprocess.Popen[bytes] | None = None
        self._run("kafka.tools.StorageTool", "format", "-t", "MkU3OEVBNTcwNTJENDM2Qg", "-c", "server.properties")
        self.start()
        self.admin = AdminClient({"bootstrap.servers": self.servers})

    @property
    def wire(self) -> Wire:
        """What clients reach it through."""
        assert self._wire is not None, "clients reach it as it is"
        return self._wire

    def _run(self, *command: str) -> None:
        done = subprocess.run([*self._java, *command], cwd=self._directory, capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(f"{command}: {done.stdout[-2000:]}{done.stderr[-2000:]}")

    def start(self) -> None:
        """Another life of it. Returns when it answers."""
        assert self._process is None, "it runs"
        with (self._directory / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [*self._java, "kafka.Kafka", "server.properties"], cwd=self._directory, stdout=log, stderr=log
            )
        end = time.monotonic() + START_SECONDS
        while time.monotonic() < end and self._process.poll() is None:
            try:
                asked = AdminClient({"bootstrap.servers": f"127.0.0.1:{self._own}", "log_level": 0})
                if asked.list_topics(timeout=1).brokers:
                    return
            except KafkaException:
                time.sleep(0.05)
        self.kill()
        raise RuntimeError(f"Kafka does not answer: {(self._directory / 'log').read_text()[-2000:]}")

    def kill(self) -> None:
        """As a power cut; it is fine if it does not run."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def create(self, topic: str, partitions: int, **config: str) -> None:
        """A new topic."""
        for one in self.admin.create_topics([NewTopic(topic, partitions, 1, config=config)]).values():
            one.result(30)
        end = time.monotonic() + 30
        while time.monotonic() < end:
            with contextlib.suppress(KafkaException):
                for found in self.admin.describe_topics(TopicCollection([topic])).values():
                    if len(found.result(30).partitions) == partitions:
                        return
            time.sleep(0.05)
        raise TimeoutError(f"no topic {topic} after its creation")

    def grow(self, topic: str, partitions: int) -> None:
        """It has so many partitions from now on."""
        for one in self.admin.create_partitions([NewPartitions(topic, partitions)]).values():
            one.result(30)

    def forget(self, topic: str, before: Mapping[int, int]) -> None:
        """What retention does: records of a partition before this offset are gone."""
        asked = [TopicPartition(topic, partition, offset) for partition, offset in before.items()]
        for one in self.admin.delete_records(asked).values():
            one.result(30)

    def delete(self, topic: str) -> None:
        """There is no such topic any more."""
        for one in self.admin.delete_topics([topic]).values():
            one.result(30)

    def lock(self, topic: str) -> None:
        """Nobody may do anything with it."""
        for one in self.admin.create_acls([AclBinding(*_nobody(topic))]).values():
            one.result(30)

    def unlock(self, topic: str) -> None:
        """Everybody may again."""
        for one in self.admin.delete_acls([AclBindingFilter(*_nobody(topic))]).values():
            one.result(30)

    def lose(self, topic: str, partition: int) -> None:
        """The disk that held all records of a partition is gone, and another one is in its place. Another life of it."""
        self.kill()
        for file in (self._directory / "data" / f"{topic}-{partition}").iterdir():
            file.unlink()
        self.start()

    def produce(self, topic: str, records: Iterable[tuple[int, bytes | None]], **more: Any) -> None:
        """Records (partition, value)."""
        producer = self.producer()
        for partition, value in records:
            while True:
                try:
                    producer.produce(topic, value, partition=partition, **more)
                    break
                except BufferError:
                    producer.poll(0.05)
            producer.poll(0)
        if producer.flush(30):
            raise RuntimeError(f"records for {topic} were not taken")

    def producer(self, **config: Any) -> Producer:
        """A client that writes."""
        more = {name.replace("_", "."): value for name, value in config.items()}
        return Producer({"bootstrap.servers": self.servers, "linger.ms": 5, "enable.idempotence": True, **more})

    def ends(self, topic: str) -> dict[int, int]:
        """By partition, the offset behind its last record."""
        about = self.admin.list_topics(topic, timeout=30).topics[topic]
        consumer = Consumer({"bootstrap.servers": self.servers, "group.id": "tests"})
        found = {one: consumer.get_watermark_offsets(TopicPartition(topic, one), 30)[1] for one in about.partitions}
        consumer.close()
        return found

    def read(self, topic: str, isolation: str = "read_committed") -> list[Message]:
        """All records that are there now."""
        about = self.admin.list_topics(topic, timeout=30).topics[topic]
        consumer = Consumer(
            {
                "bootstrap.servers": self.servers,
                "group.id": "tests",
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "auto.offset.reset": "earliest",
                "isolation.level": isolation,
            }
        )
        consumer.assign([TopicPartition(topic, one, 0) for one in about.partitions])
        left, found, end = set(about.partitions), [], time.monotonic() + 60
        while left and time.monotonic() < end:
            for one in consumer.consume(10_000, 0.5):
                if one.error() is None:
                    found.append(one)
                elif one.error().code() == KafkaError._PARTITION_EOF:
                    left.discard(one.partition())
        consumer.close()
        if left:
            raise TimeoutError(f"partitions {left} of {topic} could not be read to their ends")
        return found


def _nobody(topic: str) -> tuple[Any, ...]:
    """What a rule says by which nobody may do anything with a topic."""
    whole = ResourceType.TOPIC, topic, ResourcePatternType.LITERAL
    return *whole, "User:*", "*", AclOperation.ALL, AclPermissionType.DENY


def _free() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port: int = one.getsockname()[1]
        return port
