"""Executors of Spark: their ids, what they prove themselves with, and what the driver tells workers about their start."""

from __future__ import annotations

import json
from base64 import b64encode
from dataclasses import asdict, dataclass

from ferry.contract.lenient import known
from ferry.contract.sealing import opened, sealed
from ferry.contract.tickets import derived

GENERATIONS, WORKERS, ATTEMPTS = 2000, 1000, 1000
"""Numbers in an id. Spark reads an id as a number of 31 bits: the product must stay below 2**31."""

_PURPOSE = "executor"


def executor_id(generation: int, worker: int, attempt: int) -> int:
    """The id of an executor: generation, worker and attempt can be read off its decimal digits."""
    assert 0 <= worker < WORKERS, f"worker {worker}"
    return (generation % GENERATIONS * WORKERS + worker) * ATTEMPTS + attempt % ATTEMPTS


def worker_of(executor: str) -> int | None:
    """The worker of an executor; None: Ferry did not make the id."""
    return int(executor) // ATTEMPTS % WORKERS if executor.isdecimal() else None


def application(run: str, life: str) -> str:
    """Id of Spark's application: each life of a driver has its own, in Spark's pages and in its event log."""
    return f"{run}-{life}"


def spark_secret(secret: str, life: str) -> str:
    """What Spark's driver and executors show each other. Each life has its own: executors of an older life are refused.

    Spark's driver reads the bytes that this base64 stands for.
    """
    return b64encode(bytes.fromhex(derived(secret, f"spark {life}"))).decode()


@dataclass(frozen=True, slots=True)
class ExecutorStart:
    """What the driver tells workers about the start of its executors, as its Spark has read the job's settings."""

    memory_mb: int
    java: list[str]
    """options of Java"""
    settings: dict[str, str]
    """settings of Spark that an executor needs before it can reach the driver"""
    variables: dict[str, str]
    """environment variables"""
    class_path: str = ""
    """the user's, before Spark's"""

    def sealed(self, secret: str, life: str) -> str:
        """For the registry: variables may be secrets, and options of Java run code."""
        return sealed(secret, _PURPOSE, json.dumps(asdict(self)), life)

    @staticmethod
    def opened(secret: str, life: str, shown: str) -> ExecutorStart:
        """Inverse of sealed. Raises Refusal."""
        return ExecutorStart(**known(ExecutorStart, json.loads(opened(secret, _PURPOSE, shown, life))))
