"""The chart as helm renders it, for tests: documents, rights, queries. Needs no cluster."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sysconfig
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[2]
CHART = ROOT / "charts" / "ferry"

Document = dict[str, Any]
Right = tuple[str, str, str]
"""(verb, group, resource)"""


class Refused(Exception):
    """Helm does not render this; says why."""


@cache
def helm() -> str:
    """The program: it comes with the development environment."""
    found = shutil.which("helm", path=sysconfig.get_path("scripts")) or shutil.which("helm")
    assert found is not None, "no helm: run `make setup`"
    return found


def run(*arguments: str) -> str:
    """Standard output of helm; Refused when it fails."""
    done = subprocess.run([helm(), *arguments], capture_output=True, text=True, timeout=60)
    if done.returncode != 0:
        raise Refused(done.stdout + done.stderr)
    return done.stdout


def render(
    values: Document | None = None, release: str = "x", namespace: str = "streams", upgrade: bool = False
) -> list[Document]:
    """All documents of the chart with these values over the defaults; `upgrade`: of an installed release, with hooks."""
    sets = [part for key, value in (values or {}).items() for part in ("--set-json", f"{key}={json.dumps(value)}")]
    text = run("template", release, str(CHART), "--namespace", namespace, *sets, *(["--is-upgrade"] if upgrade else []))
    return [document for document in yaml.safe_load_all(text) if document]


def of_kind(documents: Iterable[Document], kind: str, name: str = "") -> list[Document]:
    """Those of a kind whose name ends so."""
    return [d for d in documents if d["kind"] == kind and d["metadata"]["name"].endswith(name)]


def pods(documents: Iterable[Document]) -> Iterator[tuple[str, Document]]:
    """(name of the workload, spec of its pods)."""
    for document in documents:
        if document["kind"] in ("Deployment", "StatefulSet", "DaemonSet", "Job"):
            yield document["metadata"]["name"], document["spec"]["template"]["spec"]


def rights(documents: Iterable[Document], kind: str = "Role", name: str = "", named: bool = False) -> set[Right]:
    """What the roles of this kind whose names end so allow; `named`: the rules that name their objects, else the others."""
    return {
        (verb, group, resource)
        for role in of_kind(documents, kind, name)
        for rule in role["rules"]
        if ("resourceNames" in rule) == named
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


def environment(container: Document) -> dict[str, Any]:
    """Variables of a container: their values, or where these come from."""
    return {one["name"]: one.get("value", one.get("valueFrom")) for one in container.get("env", ())}


def alerts() -> list[Document]:
    """All rules of the chart."""
    groups = yaml.safe_load((CHART / "alerts.yaml").read_text("utf-8"))["groups"]
    return [rule for group in groups for rule in group["rules"]]


def dashboards() -> dict[str, Document]:
    """Grafana's dashboards by file name."""
    return {file.stem: json.loads(file.read_text("utf-8")) for file in sorted((CHART / "dashboards").glob("*.json"))}


def queries() -> dict[str, str]:
    """Every expression for Prometheus: of alerts by their name, of panels by 'dashboard / panel / letter', of annotations."""
    found = {rule["alert"]: rule["expr"] for rule in alerts()}
    for name, board in dashboards().items():
        for annotation in board.get("annotations", {"list": []})["list"]:
            found[f"{name} / annotation / {annotation['name']}"] = annotation["expr"]
        for panel in board["panels"]:
            for target in panel["targets"]:
                found[f"{name} / {panel['title']} / {target['refId']}"] = target["expr"]
    return found


def variables() -> dict[str, list[str]]:
    """What the queries of a dashboard leave open, by the dashboard's file name."""
    return {
        name: [v["name"] for v in board["templating"]["list"] if v["type"] == "query"]
        for name, board in dashboards().items()
    }


def metrics_of(query: str) -> set[str]:
    """Names of Ferry's metrics in a query, as they are exported: without what Prometheus' formats add."""
    names = re.findall(r"\bferry_[a-z_]+", query)
    return {re.sub(r"_(total|bucket|count|sum)$", "", name) for name in names}
