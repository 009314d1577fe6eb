"""The language of pipelines and the connectors load no Spark, also where an import is hidden in a function that runs."""

from __future__ import annotations

import subprocess
import sys

CODE = """
import pkgutil, sys
import ferry.api, ferry.connectors
for room in (ferry.api, ferry.connectors):
    for module in pkgutil.walk_packages(room.__path__, room.__name__ + "."):
        __import__(module.name)
import pyarrow as pa
import ferry
from ferry.api.pipeline import Build, Input
from ferry.api.stream import Stream
schema = pa.schema([("ts", pa.int64()), ("auction", pa.int64())])
bids = Stream(Build(lambda function, schema, where: schema), Input("bids", (), schema, None, 0))
counts = bids.event_time("ts").key_by("auction").window(ferry.tumbling("60s")).aggregate("counts", n=ferry.count())
counts.sink(ferry.parquet("counts"))
print(sorted(name for name in sys.modules if name.split(".")[0] in ("pyspark", "py4j")))
"""


def test_a_pipeline_is_declared_without_spark() -> None:
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
