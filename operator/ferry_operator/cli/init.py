"""`ferry init`: a first job; see `main`."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Annotated

import typer

from ferry.contract.errors import Refusal

app = typer.Typer()

PROGRAM = '''"""Sales of each shop in windows of ten seconds."""

import pyarrow as pa

import ferry

ORDERS = pa.schema([("shop", pa.string()), ("ts", pa.int64()), ("cents", pa.int64())])


def sources(spark, args: dict) -> dict:
    """The sources by name: all files in the folder, also new ones."""
    return {"orders": ferry.json_files(args["directory"], ORDERS, finite=args.get("finite", False))}


def pipeline(streams: dict[str, ferry.Stream], args: dict):
    """Orders may arrive three seconds late. `ts` is in milliseconds."""
    orders = streams["orders"].event_time("ts", delay="3s").key_by("shop").window(ferry.tumbling("10s"))
    sales = orders.aggregate("sales", orders=ferry.count(), cents=ferry.sum("cents"))
    return sales.sink(ferry.parquet("sales"))
'''

TEST = '''"""Runs the pipeline without a cluster: `pytest`."""

import ferry
from {module} import pipeline


def test_orders_of_a_window_are_summed():
    orders = [
        {{"shop": "north", "ts": 1000, "cents": 250}},
        {{"shop": "north", "ts": 9000, "cents": 100}},
        {{"shop": "south", "ts": 4000, "cents": 999}},
    ]
    results = ferry.test(pipeline, {{"orders": orders}}, epochs=2)
    rows = results["sales"].sort_by("shop").to_pylist()
    assert [(row["shop"], row["orders"], row["cents"]) for row in rows] == [("north", 2, 350), ("south", 1, 999)]
'''

JOB = """apiVersion: ferry.dev/v1alpha1
kind: StreamJob
metadata:
  name: {name}
spec:
  pipeline:
    file: {module}.py
    args: {{directory: orders}}
  workers: 2
  output: output
"""

READ = '''"""Shows the last results of the job: `python read.py OUTPUT`."""

import sys

import pandas

sales = pandas.read_parquet(f"{sys.argv[1]}/sales").sort_values(["window_start", "shop"])
sales["window_start"] = pandas.to_datetime(sales["window_start"], unit="ms")
print(sales[["window_start", "shop", "orders", "cents"]].tail(6).to_string(index=False))
'''

NEXT = """{name}/ has a job file, its program, orders, a test, and a script to read results.

  cd {name}
  # Test without a cluster (pip install pytest); compiles kernels at first:
  python -m pytest -q
  # Check the job, and show its pipeline, without a run:
  ferry validate {name}.yaml
  ferry explain {name}.yaml
  # Process all orders in the folder, and show the sales of each shop:
  ferry run {name}.yaml --set pipeline.args.finite=true
  python read.py output
  # Also process new orders, until Ctrl-C; put more files into orders/:
  ferry run {name}.yaml --output live
"""


@app.command()
def init(name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the job, and of its new folder.")]) -> None:
    """Write a first job into a new folder: its program, its job file, some records and a test."""
    if not re.fullmatch(r"[a-z]([-a-z0-9]{0,38}[a-z0-9])?", name):
        raise Refusal(f"{name!r}: a job's name has small letters, digits and '-', at most 40, and begins with a letter")
    folder, module = Path(name), name.replace("-", "_")
    if folder.exists():
        raise Refusal(f"{folder} exists already; choose another name")
    shops = ("north", "south", "east")
    orders = (
        {"shop": shops[i % 3], "ts": 1_700_000_000_000 + 400 * i, "cents": 100 + 7 * (i % 50)} for i in range(300)
    )
    files = {
        f"{module}.py": PROGRAM,
        f"{name}.yaml": JOB.format(name=name, module=module),
        f"test_{module}.py": TEST.format(module=module),
        "read.py": READ,
        "orders/1.json": "".join(json.dumps(order) + "\n" for order in orders),
    }
    try:
        for path, text in files.items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_text(text, "utf-8")
    except OSError as error:
        raise Refusal(f"{folder} cannot be written: {error.strerror}") from None
    print(NEXT.format(name=name), end="")
