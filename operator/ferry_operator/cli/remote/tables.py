"""The output for jobs on a cluster: plain values from objects of the API, and tables of these values.

Pure, except for the clock of ages. It sends no request and decides nothing.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from rich.table import Table
from rich.text import Text

from ferry_operator.cli.remote import intents
from ferry_operator.cli.remote.proposal import Proposal
from ferry_operator.job.status import JobStatus
from ferry_operator.kube.api import names
from ferry_operator.kube.api.names import Doc
from ferry_operator.kube.observe import facts
from ferry_operator.kube.observe.suspension import asked
from ferry_operator.kube.report.status import duration

Record = dict[str, Any]

SHORT = 60
"""Greatest length of a value in a table."""

STYLES = {
    "Running": "green",
    "Moving": "cyan",
    "Degraded": "red",
    "Failed": "red",
    "Finished": "bold",
    "Suspended": "bold",
}

GOOD = {
    "Ready": "True",
    "Progressing": "False",
    "Handover": "False",
    "Degraded": "False",
    "ReplicasInSync": "True",
    "SpecInForce": "True",
}
"""Conditions of a job at rest."""


def described(
    context: str, job: Doc, pods: Sequence[Doc] | None, events: Sequence[Doc] | None, left_out: Sequence[str]
) -> Record:
    """A job for programs. `pods`, `events`: None if they are not requested, or may not be read."""
    spec, metadata = job.get("spec") or {}, job["metadata"]
    drains = intents.drains(job)
    facts_of_pods = [facts.pod(pod) for pod in pods or []]
    return {
        "job": metadata["name"],
        "namespace": metadata.get("namespace"),
        "context": context,
        "created": metadata.get("creationTimestamp"),
        "generation": metadata.get("generation", 0),
        "spec": {
            **intents.size_of(job).to_wire(),
            "replicas": (spec.get("state") or {}).get("replicas", 1),
            "virtualNodes": intents.virtual_nodes_of(job),
        },
        "paused": intents.paused(job),
        "suspended": asked(job),
        "autoscaled": (spec.get("autoscale") or {}).get("max") is not None,
        "checkpoints": intents.checkpoint_location(job),
        "drains": list(drains),
        "pins": {str(vnode): instance for vnode, instance in intents.pins(job).items()},
        "status": JobStatus.read(job.get("status")).to_wire(),
        "driver": next((_pod(pod) for pod in facts_of_pods if pod.role == names.DRIVER_ROLE), None),
        "workers": [
            _worker(pod, drains)
            for pod in sorted(facts_of_pods, key=lambda pod: pod.worker or 0)
            if pod.worker is not None
        ],
        "events": None if events is None else [event_record(event) for event in events],
        "leftOut": list(left_out),
    }


def _pod(pod: facts.Pod) -> Record:
    return {
        "pod": pod.name,
        "node": pod.node,
        "phase": "Terminating" if pod.deleting is not None else pod.phase,
        "ready": pod.ready,
        "problems": [asdict(problem) for problem in pod.problems],
    }


def _worker(pod: facts.Pod, drains: Sequence[int]) -> Record:
    return {
        "index": pod.worker,
        "instances": max(1, pod.number(names.INSTANCES)),
        "drained": pod.worker in drains,
        **_pod(pod),
    }


def event_record(event: Doc) -> Record:
    """An event for programs."""
    return {
        "time": time_of(event),
        "type": event.get("type", "Normal"),
        "reason": event.get("reason", ""),
        "message": event.get("message", ""),
        "count": event.get("count") or 1,
    }


def time_of(event: Doc) -> str:
    """The time of the last occurrence of an event."""
    text = event.get("lastTimestamp") or event.get("eventTime") or event.get("firstTimestamp")
    return str(text or event["metadata"].get("creationTimestamp") or "")


# ---- tables for users


def jobs_table(document: Record) -> Table:
    """The jobs of a namespace, one line each."""
    columns = "JOB", "STATUS", "WORKERS", "MOVING", "LAG", "STATE", "REPLICA LAG", "LAST HANDOVER", "AGE", ""
    table = Table(*columns, box=None, pad_edge=False)
    for job in document["jobs"]:
        status, spec = job["status"], job["spec"]
        table.add_row(
            job["job"],
            _phase(status),
            f"{status['workers']}/{spec['workers']} x {spec['instancesPerWorker']}",
            str(status["moving"]),
            *(_or_dash(status["progress"].get(key)) for key in ("lag", "state", "replicaLag")),
            _or_dash(status.get("lastHandover")),
            _ago(job["created"]),
            Text("paused" if job["paused"] else _first_problem(status), style="yellow"),
        )
    if not document["jobs"]:
        table.add_row(Text(f"no StreamJob in namespace {document['namespace']}", style="dim"))
    return table


def job_table(document: Record) -> Table:
    """One job: numbers, conditions, pods and the last events."""
    status, spec, progress = document["status"], document["spec"], document["status"]["progress"]
    table = Table.grid(padding=(0, 2))
    table.add_row(Text(document["job"], style="bold"), _title(document))
    _add(table, "version", _or_dash(status.get("version")))
    _add(table, "workers", _workers_text(document))
    _add(table, "moving", f"{status['moving']} of {spec['virtualNodes']} virtual nodes")
    _add(table, "last handover", _or_dash(status.get("lastHandover")))
    if status.get("epoch") is not None:
        rows = f", {progress['rows']:,} rows" if progress.get("rows") is not None else ""
        mode = f", {progress['epochMode']}" if progress.get("epochMode") else ""
        _add(table, "epoch", f"{status['epoch']}, generation {status.get('generation', '-')}{rows}{mode}")
    parts = [f"{words} {progress[key]}" for key, words in LAGS.items() if progress.get(key)]
    if parts:
        _add(table, "state", ", ".join(parts))
    if (last := status.get("checkpoint")) is not None:
        name = f" ({last['name']})" if last.get("name") else ""
        _add(table, "checkpoint", f"{last['number']}{name}, as of epoch {last['epoch']}, {_ago(last.get('at'))} ago")
    if (balance := status.get("balance")) is not None:
        _add(
            table,
            "balance",
            balance.get("advice") or f"the busiest instance has {balance['imbalance']} times the average",
        )
    links = status.get("transport") or {}
    if links.get("reason"):
        _add(table, "links", Text(f"{links['kind']}: {links['reason']}", style="yellow"))
    if (scaling := status.get("autoscale")) is not None:
        _add(table, "autoscale", f"{scaling['mode']}, {scaling['reason']}: {scaling['message']}")
    if status.get("intended"):
        _add(table, "about to", status["intended"])
    _add_all(table, "conditions", [_condition_text(condition) for condition in status["conditions"]] or ["none yet"])
    for worker in document["workers"]:
        drained = ["drained"] if worker["drained"] else []
        _add(table, f"  worker {worker['index']}", _pod_text(worker, drained))
    if document["driver"] is not None:
        _add(table, "  driver", _pod_text(document["driver"], []))
    if document["pins"]:
        _add(table, "pinned", ", ".join(f"{vnode} at {instance}" for vnode, instance in document["pins"].items()))
    _add_all(table, "events", [event_text(event) for event in document["events"] or []])
    for text in document["leftOut"]:
        _add(table, "left out", Text(text, style="yellow"))
    return table


LAGS = {"state": "size", "lag": "lag", "replicaLag": "replica lag"}


def _add_all(table: Table, title: str, lines: Sequence[str | Text]) -> None:
    for number, line in enumerate(lines):
        _add(table, "" if number else title, line)


def _add(table: Table, title: str, line: str | Text) -> None:
    """Add a row with a line of plain text, without markup."""
    table.add_row(title, Text(line) if isinstance(line, str) else line)


def _title(document: Record) -> Text:
    text = Text.assemble(_phase(document["status"]), f", namespace {document['namespace']} of {document['context']}")
    if document["paused"]:
        text.append(", paused", style="yellow")
    behind = document["generation"] > document["status"]["observedGeneration"]
    return text.append(", the operator has not looked at the last change yet", style="yellow") if behind else text


def _phase(status: Mapping[str, Any]) -> Text:
    return Text(status["phase"], style=STYLES.get(status["phase"], ""))


def _workers_text(document: Record) -> str:
    status, spec = document["status"], document["spec"]
    text = f"{status['workers']} of {spec['workers']} own state, {spec['instancesPerWorker']} instances each"
    return f"{text}, {spec['replicas']} replicas" + (f"; drained: {document['drains']}" if document["drains"] else "")


def _condition_text(condition: Mapping[str, Any]) -> Text:
    kind, status = condition["type"], condition["status"]
    good = status == GOOD.get(kind, status)
    text = Text(f"{kind:<15}{status:<8}{condition['reason']:<14}", style="" if good else "yellow")
    text.append(f"{_ago(condition['lastTransitionTime']):>6}  ", style="dim")
    return text.append(condition.get("message", ""))


def _pod_text(pod: Record, more: Sequence[str]) -> str:
    words = [pod["phase"] + ("" if pod["ready"] else ", not ready"), f"on {pod['node']}" if pod["node"] else "no node"]
    return ", ".join([*words, *more, *(problem["message"] for problem in pod["problems"])])


def event_text(event: Record) -> Text:
    """One event as a line."""
    times = f" (x{event['count']})" if event["count"] > 1 else ""
    text = Text(f"{_ago(event['time']):>6}  ", style="dim")
    style = "yellow" if event["type"] == "Warning" else ""
    return text.append(f"{event['reason']}: {event['message']}{times}", style=style)


def _first_problem(status: Mapping[str, Any]) -> str:
    degraded = (c for c in status["conditions"] if c["type"] == "Degraded" and c["status"] == "True")
    bad = next(degraded, None)
    return str(bad["message"]) if bad is not None else ""


def _ago(stamp: Any) -> str:
    then = facts.when(stamp)
    return duration(round(time.time() - then)).replace(".0s", "s") if then is not None else "-"


def _or_dash(value: Any) -> str:
    return str(value) if value is not None else "-"


def proposal_table(proposal: Proposal) -> Table:
    """The effects of a change."""
    table = Table.grid(padding=(0, 2))
    table.add_row(Text(proposal.job, style="bold"), "effects of the change; nothing was changed")
    for change in proposal.changes:
        text = Text(f"{_short(change.before)} -> {_short(change.after)}  ")
        style = "red" if change.kind == "refused" else "cyan"
        text.append(str(change.kind), style=style).append(f": {change.entry.what}")
        _add(table, change.path, text)
    _add_all(table, "effect", list(proposal.effects))
    _add_all(table, "refused", [Text(text, style="red") for text in proposal.refusals])
    _add_all(table, "warning", [Text(text, style="yellow") for text in proposal.warnings])
    return table


def _short(value: Any) -> str:
    text = "null" if value is None else str(value)
    return text if len(text) <= SHORT else text[: SHORT - 3] + "..."
