"""Every query has a job and an example, is tried by random runs, and is declared as the oracle knows the query."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import cast

import pytest
import yaml

from ferry.api.pipeline import Build, Input
from ferry.api.stream import Stream
from ferry.connectors.files.parquet_sink import Parquet
from tests.cluster.queries import JOBS, oracle, sinks_of

ROOT = Path(__file__).resolve().parents[3]
MODULES = ROOT / "bench" / "workloads" / "ferry_workloads" / "jobs"


def test_jobs_examples_and_random_runs_are_of_the_same_queries() -> None:
    modules = {file.stem for file in MODULES.glob("*.py")} - {"__init__", "arguments"}
    assert modules == JOBS.keys() == {file.stem for file in (ROOT / "examples").glob("*.yaml")}
    assert JOBS.keys() == oracle.QUERIES.keys()


@pytest.mark.parametrize("query", JOBS)
def test_an_example_runs_the_job_of_its_name(query: str) -> None:
    document = yaml.safe_load((ROOT / "examples" / f"{query}.yaml").read_text())
    assert document["metadata"]["name"] == query.replace("_", "-")
    assert document["spec"]["pipeline"]["module"] == f"ferry_workloads.jobs.{query}"
    job, build = importlib.import_module(f"ferry_workloads.jobs.{query}"), Build(lambda function, schema, where: schema)
    read = {name: Input(name, (), made.schema(), None, 0) for name, made in job.sources(None, {}).items()}
    made = job.pipeline({name: Stream(build, one) for name, one in read.items()}, {})
    outputs = made if isinstance(made, list) else [made]
    names = tuple(cast(Parquet, output.sink).declared for output in outputs)
    assert names == sinks_of(query), "the oracle's rows are compared"
