"""The job file: what is read, what is refused and with which words."""

from __future__ import annotations

from pathlib import Path

import pytest

from ferry.contract.errors import SpecRefused
from ferry_operator.job import spec
from ferry_operator.job.models import SPARK_OWNED, SPARK_UNUSED, Metadata, StreamJob
from ferry_operator.job.quantities import Duration, Quantity
from ferry_operator.kube.api import names

JOB = """
apiVersion: ferry.dev/v1alpha1
kind: StreamJob
metadata: {name: q5}
spec:
  pipeline: {module: jobs.q5}
"""


def with_spec(lines: str) -> str:
    return JOB + "".join(f"  {line}\n" for line in lines.splitlines())


def refusal(text: str, *sets: str) -> str:
    with pytest.raises(SpecRefused) as refused:
        spec.load(text, sets)
    assert isinstance(refused.value, spec.JobRefused)
    assert all("\n" not in problem for problem in refused.value.problems)
    return str(refused.value)


def test_the_smallest_job_has_all_defaults() -> None:
    job = spec.load(JOB)
    assert (job.metadata.name, job.spec.workers, job.spec.instances_per_worker) == ("q5", 2, 1)
    assert (job.spec.state.virtual_nodes, job.spec.state.replicas, job.spec.state.memory.bytes) == (64, 1, 2**30)
    assert (job.spec.epoch.interval.seconds, job.spec.epoch.max_rows) == (0.0, 1_000_000)
    assert (job.spec.handover.strategy, job.spec.handover.bandwidth) == ("all-at-once", None)
    assert (job.spec.failure.timeout.seconds, job.spec.handover.deadline.seconds) == (2.5, 600.0)


def test_a_dump_is_read_back_equal_and_keeps_the_spelling() -> None:
    job = spec.load(with_spec("epoch: {interval: 1500ms}\nstate: {memory: 512Mi}\nhandover: {bandwidth: 1048576}"))
    text = spec.dump(job)
    assert spec.load(text) == job
    assert "1500ms" in text and "512Mi" in text
    assert job.spec.handover.bandwidth is not None and job.spec.handover.bandwidth.bytes == 2**20


def test_what_kubernetes_adds_is_not_read() -> None:
    text = (
        JOB.replace("{name: q5}", "{name: q5, uid: x, generation: 3, managedFields: []}") + "status: {phase: Running}\n"
    )
    assert spec.load(text) == spec.load(JOB)


def test_arguments_are_scalars_and_lists_and_dates_stay_text() -> None:
    text = JOB.replace("jobs.q5", "jobs.q5, args: {seed: 7, rate: 1.5, day: 2024-01-01, sizes: [1, 2], x: null}")
    args = spec.load(text).spec.pipeline.args
    assert args == {"seed": 7, "rate": 1.5, "day": "2024-01-01", "sizes": [1, 2], "x": None}


def test_every_field_is_described() -> None:
    def check(schema: dict[str, object], path: str) -> None:
        properties = schema.get("properties", {})
        assert isinstance(properties, dict)
        for name, field in properties.items():
            assert field.get("description"), f"{path}.{name} has no description"

    schema = StreamJob.model_json_schema(by_alias=True)
    for name, part in {"StreamJob": schema, **schema["$defs"]}.items():
        check(part, name)
    assert schema["$defs"]["StateSpec"]["properties"]["virtualNodes"]["x-kubernetes-validations"]


REFUSED = [
    ("epoch: {intervl: 2s}", "spec.epoch.intervl: unknown field; did you mean 'interval'?"),
    ("state: {virtual_nodes: 64}", "spec.state.virtual_nodes: unknown field; did you mean 'virtualNodes'?"),
    ("bandwidth: 3", "spec.bandwidth: unknown field; did you mean 'spec.handover.bandwidth'?"),
    ("sink: {attempts: 6}", "spec.sink.attempts: unknown field; allowed here: patience"),
    ("deadLetter: {zzz: 3}", "spec.deadLetter.zzz: unknown field; allowed here: directory"),
    ("workers: '3'", "spec.workers: '3': must be a whole number"),
    ("workers: true", "spec.workers: True: must be a whole number"),
    ("workers: -1", "spec.workers: -1: must be greater than or equal to 0"),
    ("workers: 0", "spec: workers 0 needs 'state.checkpoint.location': without pods only a checkpoint keeps the state"),
    (
        "suspend: true",
        "spec: suspend needs 'state.checkpoint.location': without pods only a checkpoint keeps the state",
    ),
    ("state: {checkpoint: {every: 500ms}}", "spec.state.checkpoint.every: '500ms': must be between '1s' and '24h'"),
    ("state: {checkpoint: {keep: 0}}", "spec.state.checkpoint.keep: 0: must be greater than or equal to 1"),
    ("state: {checkpoint: {location: 's3://key:secret@bucket/x'}}", "may not hold a password"),
    ("state: {checkpoint: {location: 's3://key@bucket/x'}}", "may not hold a password"),
    ("state: {checkpoint: {location: 's3://bucket/x?region=a&Secret_Key=b'}}", "may not hold a password"),
    ("restoreFrom: 's3://key:secret@bucket/x'", "may not hold a password"),
    ("restoreSink: drop", "spec.restoreSink: 'drop' is not allowed; must be 'truncate' or 'keep'"),
    ("kubernetes: {envFrom: [Store]}", "spec.kubernetes.envFrom.0: 'Store': string should match pattern"),
    ("workers: 257", "spec.workers: 257: must be less than or equal to 256"),
    ("instancesPerWorker: 65", "spec.instancesPerWorker: 65: must be less than or equal to 64"),
    ("cores: 0", "spec.cores: 0: must be greater than or equal to 1"),
    ("state: {virtualNodes: 48}", "spec.state.virtualNodes: 48: must be a power of two, such as 32 or 64"),
    ("state: {virtualNodes: 65536}", "spec.state.virtualNodes: 65536: must be less than or equal to 32768"),
    ("state: {replicas: 5}", "spec.state.replicas: 5: must be less than or equal to 4"),
    ("state: {directory: 5}", "spec.state.directory: 5: must be text; quote it"),
    ("state: {memory: 512m}", "spec.state.memory: '512m': a size is a number of bytes with k, M, G, T,"),
    ("state: {memory: 1Mi}", "spec.state.memory: '1Mi': must be at least '16Mi'"),
    ("state: {memory: 1.5}", "spec.state.memory: 1.5: a size is text such as '512Mi', or a whole number of bytes"),
    ("epoch: {interval: 5}", "spec.epoch.interval: 5: a duration is a number with a unit (ms, s, m, h)"),
    ("epoch: {interval: 5d}", "spec.epoch.interval: '5d': a duration is a number with a unit (ms, s, m, h)"),
    ("epoch: {interval: 2h}", "spec.epoch.interval: '2h': must be between '0s' and '1h'"),
    ("epoch: {maxRows: 0}", "spec.epoch.maxRows: 0: must be greater than or equal to 1"),
    (
        "handover: {strategy: batch}",
        "spec.handover.strategy: 'batch' is not allowed; must be 'all-at-once', 'batched', 'fluid' or 'optimized'; "
        "did you mean 'batched'?",
    ),
    ("handover: {bandwidth: 1}", "spec.handover.bandwidth: 1: must be 0 or at least '64Ki'"),
    ("transport: {mode: ib}", "spec.transport.mode: 'ib' is not allowed; must be 'auto', 'rdma' or 'tcp'"),
    (
        "failure: {heartbeat: 2s, timeout: 4s}",
        "spec.failure: 'timeout' must be more than two heartbeats of 2s: a heartbeat may get lost",
    ),
    ("sink: 5", "spec.sink: 5: must be a map of fields"),
    ("spark: {sql.x: y}", "spec.spark: 'sql.x': keys begin with 'spark.'; did you mean 'spark.sql.x'?"),
    ("spark: {spark.x: true}", "spec.spark.spark.x: True: must be text; quote it"),
    ("spark: {spark.executor.instances: '3'}", "belongs to Ferry: set spec.workers"),
    ("workers: 2\nworkers: 3", "job: not YAML: line 8: 'workers' is given twice"),
]


@pytest.mark.parametrize(("lines", "message"), REFUSED, ids=[lines for lines, _ in REFUSED])
def test_a_wrong_field_is_refused_with_its_path(lines: str, message: str) -> None:
    assert message in refusal(with_spec(lines))


def test_all_problems_are_told_at_once() -> None:
    assert len(refusal(with_spec("workers: -1\ncores: 0\nepoch: {intervl: 1s}")).splitlines()) == 3


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (
            "module: jobs.q5",
            "module: a, file: b.py",
            "spec.pipeline: give exactly one of 'module', 'file' and 'configMap'",
        ),
        ("module: jobs.q5", "version: a", "spec.pipeline: give exactly one of 'module', 'file' and 'configMap'"),
        ("  pipeline: {module: jobs.q5}", "  workers: 2", "spec.pipeline: required"),
        ("module: jobs.q5", "module: a, args: {x: {y: 1}}", "spec.pipeline.args.x: an argument is text, a number"),
        ("module: jobs.q5", "module: a, args: {x: .inf}", "spec.pipeline.args.x: inf: an argument must be a finite"),
        ("name: q5", "name: Q_5", "metadata.name: 'Q_5': must be lower-case letters"),
        ("name: q5", f"name: {'q' * 53}", "should have at most 52 characters"),
        ("name: q5", "name: q5, lables: {}", "metadata.lables: unknown field; did you mean 'labels'?"),
        ("v1alpha1", "v1", "apiVersion: 'ferry.dev/v1' is not allowed; must be 'ferry.dev/v1alpha1'"),
        ("kind: StreamJob", "kind: Streamjob", "kind: 'Streamjob' is not allowed; must be 'StreamJob'; did you mean"),
    ],
)
def test_a_wrong_document_is_refused(old: str, new: str, message: str) -> None:
    assert message in refusal(JOB.replace(old, new))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{}", "spec: required"),
        ("- 1\n- 2\n", "job: must be a map"),
        ("a: [\n", "job: not YAML: line 2"),
        ("a:\n\tb: 1\n", "found character '\\t' that cannot start any token; indent with spaces, not with tabs"),
        ("a:\n    b: 1\n   c: 2\n", "fields of one map begin in the same column: look at the indentation"),
        ("a: b: c\n", "mapping values are not allowed here; a text with ': ' in it needs quotes"),
        ("1: 2\n", "a key must be text"),
        (JOB + "---\n" + JOB, "expected a single document"),
        ("no-such-job.yaml", "no-such-job.yaml: no such job file"),
    ],
)
def test_what_is_no_document_is_refused(text: str, message: str) -> None:
    assert message in refusal(text)


def test_a_file_is_read_and_its_pipeline_is_found_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(JOB.replace("module: jobs.q5", "file: q5.py"))
    job = spec.load(path)
    assert spec.load(str(path)) == job
    assert spec.pipeline_file(job, path) == tmp_path / "q5.py"
    assert spec.pipeline_file(spec.load(JOB), path) is None
    path.write_text("workers: [")
    assert refusal(str(path)).startswith("job.yaml: not YAML")
    assert "cannot be read as a job file" in refusal(str(tmp_path))


def test_sets_change_a_copy() -> None:
    document = spec.read(JOB)
    sets = [
        "pipeline.args.seed=7",
        "pipeline.args.sizes=[1, 2]",
        "pipeline.version=2",
        "workers=3",
        "epoch.interval=1s",
        "handover.bandwidth=100M",
        "spark.sql.ansi.enabled=true",
        "spark.spark.ui.enabled=false",
    ]
    job = spec.check(spec.apply_sets(document, sets)).spec
    assert document == spec.read(JOB)
    assert (job.pipeline.args, job.pipeline.version, job.workers) == ({"seed": 7, "sizes": [1, 2]}, "2", 3)
    assert job.epoch.interval == "1s" and job.handover.bandwidth == "100M"
    assert job.spark == {"spark.sql.ansi.enabled": "true", "spark.ui.enabled": "false"}
    assert spec.load(JOB, ["handover.bandwidth=100M", "handover.bandwidth=null"]).spec.handover.bandwidth is None


@pytest.mark.parametrize(
    ("one", "message"),
    [
        ("wrkers=3", "--set wrkers=3: spec.wrkers: unknown field; did you mean 'workers'?"),
        ("pipeline.arg.seed=7", "spec.pipeline.arg: unknown field; did you mean 'args'?"),
        ("bandwidth=1", "spec.bandwidth: unknown field; did you mean 'spec.handover.bandwidth'?"),
        ("spec.workers=3", "paths begin below spec; did you mean 'workers'?"),
        ("epoch=3", "spec.epoch: a group of fields, set one of them (mode, interval, maxRows)"),
        ("epoch.interval.x=3", "spec.epoch.interval: has no fields of its own"),
        ("pipeline.args=3", "spec.pipeline.args: a group of fields, set one of them (any key)"),
        ("workers", "must be path=value, such as 'workers=3'"),
        ("workers=[1]", "'[1]' must be a single value"),
        ("workers=[", "'[' is not a YAML scalar"),
        ("=3", "unknown field"),
        ("workers=many", "spec.workers: 'many': must be a whole number"),
    ],
)
def test_a_wrong_set_is_refused(one: str, message: str) -> None:
    assert message in refusal(JOB, one)


def test_a_set_does_not_write_through_what_is_no_map() -> None:
    assert "spec.epoch: is 5 in the job file, not a map" in refusal(with_spec("epoch: 5"), "epoch.interval=1s")


def test_virtual_nodes_and_name_cannot_change() -> None:
    old = spec.load(JOB)
    assert spec.immutable_changes(old, spec.load(JOB, ["workers=9", "state.replicas=2", "state.memory=2Gi"])) == []
    assert spec.immutable_changes(old, spec.load(JOB, ["state.virtualNodes=128"])) == [
        "spec.state.virtualNodes: cannot change from 64 to 128; create a new job"
    ]
    assert spec.immutable_changes(old, spec.load(JOB.replace("name: q5", "name: q7"))) == [
        "metadata.name: 'q7' is another job than 'q5'"
    ]


def test_one_worker_is_allowed_with_replicas_but_warned_of() -> None:
    assert spec.warnings(spec.load(JOB)) == []
    assert "spec.state.replicas: 1 needs 2 workers" in spec.warnings(spec.load(JOB, ["workers=1"]))[0]
    many = spec.warnings(spec.load(JOB, ["workers=4", "instancesPerWorker=32"]))
    assert "128 instances share 64 virtual nodes; 64 of them will lead nothing" in many[0]


@pytest.mark.parametrize(
    "location", ["s3://bucket/a:b@c", "abfss://files@account/x", "/mnt/a:b@c", "s3://bucket/x?region=a", "gs://bucket"]
)
def test_a_location_without_a_password(location: str) -> None:
    assert spec.load(JOB, [f"state.checkpoint.location={location}"]).spec.state.checkpoint.location == location


def test_where_a_suspended_job_begins_from_may_change() -> None:
    """One that runs has state, and never reads it."""
    catalog = "state.checkpoint.location=/mnt/catalog"
    old, suspended = spec.load(JOB, [catalog]), spec.load(JOB, [catalog, "workers=0"])
    assert spec.immutable_changes(old, spec.load(JOB, [catalog, "restoreFrom=3"])) == [
        "spec.restoreFrom: cannot change from None to '3'; suspend the job first"
    ]
    assert spec.immutable_changes(suspended, spec.load(JOB, [catalog, "restoreFrom=latest"])) == []
    assert spec.immutable_changes(old, spec.load(JOB, [catalog, "suspend=true", "restoreFrom=latest"])) == []
    assert spec.warnings(suspended) == ["spec.suspend: the job is suspended: it has no pods"]


def test_annotations_that_ferry_obeys_are_named() -> None:
    said = Metadata.model_fields["annotations"].description or ""
    assert all(name in said for name in (names.PAUSED, names.DRAIN, names.PINS))


def test_keys_that_belong_to_ferry_have_reasons() -> None:
    for key, reason in SPARK_OWNED.items():
        assert reason in refusal(with_spec(f"spark: {{{key}: x}}"))
    for beginning, instead in SPARK_UNUSED.items():
        assert f"does nothing here: {instead}" in refusal(with_spec(f"spark: {{{beginning}some.key: x}}"))


@pytest.mark.parametrize(
    ("text", "seconds"), [("0s", 0.0), ("200ms", 0.2), ("1.5s", 1.5), ("2m", 120.0), ("1h", 3600.0)]
)
def test_durations(text: str, seconds: float) -> None:
    assert Duration(text).seconds == pytest.approx(seconds)
    assert Duration(text) == text


@pytest.mark.parametrize("text", ["", "5", "ms", "-1s", "1 s", "1e3s", "1s\n"])
def test_what_is_no_duration(text: str) -> None:
    with pytest.raises(ValueError, match="a duration is"):
        Duration(text)


@pytest.mark.parametrize(
    ("text", "size"), [("0", 0), ("7", 7), (7, 7), ("1k", 1000), ("1Ki", 1024), ("1.5Gi", 3 << 29), ("2G", 2 * 10**9)]
)
def test_quantities(text: str | int, size: int) -> None:
    assert Quantity(text).bytes == size
    assert Quantity(text) == str(text)


@pytest.mark.parametrize("text", ["", "Mi", "1m", "-1", "1 Mi", "1mb", "1K"])
def test_what_is_no_quantity(text: str) -> None:
    with pytest.raises(ValueError, match="a size is"):
        Quantity(text)
