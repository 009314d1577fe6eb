"""Ids of executors fit into what Spark reads, and say whose they are; what workers are told is for nobody else."""

from __future__ import annotations

import pytest

from ferry.contract.errors import Refusal
from ferry.contract.executors import ATTEMPTS, GENERATIONS, WORKERS, ExecutorStart, executor_id, spark_secret, worker_of
from ferry_operator.job.size import WORKERS_MAX

SPARK_MAX = 2**31 - 1


def test_every_id_is_a_number_of_31_bits() -> None:
    """A driver of a later generation, too: Spark refuses an executor whose id is greater."""
    for generation in (0, 1, 3, GENERATIONS - 1, GENERATIONS, 10**9, 2**63):
        for worker in (0, WORKERS - 1):
            for attempt in (0, 1, ATTEMPTS - 1, ATTEMPTS, 1_800_000_000):
                assert 0 <= executor_id(generation, worker, attempt) <= SPARK_MAX
    assert GENERATIONS * WORKERS * ATTEMPTS <= SPARK_MAX
    with pytest.raises(AssertionError):
        executor_id(1, WORKERS, 0)


def test_an_id_says_generation_worker_and_attempt() -> None:
    assert executor_id(3, 17, 5) == 3_017_005
    assert worker_of("3017005") == 17 and worker_of("5") == 0 and worker_of("driver") is None
    ids = {executor_id(g, w, a) for g in range(1, 4) for w in range(20) for a in range(50)}
    assert len(ids) == 3 * 20 * 50


def test_every_worker_has_a_number() -> None:
    assert 2 * WORKERS_MAX <= WORKERS, "with the workers that replace others"


def test_lives_and_runs_show_each_other_nothing() -> None:
    assert len({spark_secret(secret, life) for secret in ("s", "t") for life in ("a", "b")}) == 4


def test_what_workers_are_told_is_sealed() -> None:
    start = ExecutorStart(512, ["-Xss1m"], {"spark.authenticate": "true"}, {"TOKEN": "hidden"})
    shown = start.sealed("s", "a")
    assert "hidden" not in shown and shown != start.sealed("s", "a")
    assert ExecutorStart.opened("s", "a", shown) == start
    changed = ("B" if shown[-5] != "B" else "C").join((shown[:-5], shown[-4:]))
    for secret, life, text in (("t", "a", shown), ("s", "b", shown), ("s", "a", changed), ("s", "a", "")):
        with pytest.raises(Refusal, match="executor: it was written without the secret"):
            ExecutorStart.opened(secret, life, text)
