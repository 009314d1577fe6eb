"""Vanilla Spark counts keys in files: `python -m bench.parts.latency.spark_files CONF.json`, until it is killed."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from bench.shared import vanilla_spark


def main() -> None:
    """Run the query of the configuration."""
    conf = json.loads(Path(sys.argv[1]).read_text())
    keys = vanilla_spark.session(conf).readStream.schema("k long, t long").parquet(conf["input"])
    vanilla_spark.started(keys.groupBy("k").count(), conf, "update", "noop", None).awaitTermination()


if __name__ == "__main__":
    main()
