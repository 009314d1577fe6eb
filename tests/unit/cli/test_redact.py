"""What is taken out of a bundle, and what stays because it is needed."""

from __future__ import annotations

import json
from typing import Any

import pytest

from ferry_operator.cli.remote import redact

KEY = "0123456789abcdef" * 3


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("redis://:pw@redis:6379/0 is away", "redis://REDACTED@redis:6379/0 is away"),
        ("rediss://u:p%2Fw@h/0", "rediss://REDACTED@h/0"),
        ("Authorization: Bearer abc.def-123", "Authorization: REDACTED REDACTED"),
        ("sent bearer abc.def-123 to it", "sent bearer REDACTED to it"),
        ("password=hunter2, user=me", "password=REDACTED, user=me"),
        ('{"api_key": "x y", "n": 1}', '{"api_key": REDACTED, "n": 1}'),
        ("--db-password hunter2 --rows 5", "--db-password REDACTED --rows 5"),
        (f"the key {KEY} of the run", "the key REDACTED of the run"),
        ("key=hunter2 FERRY_KEY=hunter2", "key=REDACTED FERRY_KEY=REDACTED"),
        ("KeyError: 'auction', monkey=7", "KeyError: 'auction', monkey=7"),
        ("eyJhbGciOiJSUzI1.eyJzdWIiOiJ4In0.c2ln", "REDACTED"),
        ("-----BEGIN RSA PRIVATE KEY-----\nMII\n-----END RSA PRIVATE KEY-----\nx", "REDACTED\nx"),
        (f"image@sha256:{'ab' * 32}", f"image@sha256:{'ab' * 32}"),
        (f"containerd://{'ab' * 32}", f"containerd://{'ab' * 32}"),
        ("this operator leads, with token 29", "this operator leads, with token 29"),
        ("http://10.0.0.1:7070/status", "http://10.0.0.1:7070/status"),
        ("epoch 5: 100 rows, key group 7", "epoch 5: 100 rows, key group 7"),
    ],
)
def test_texts(text: str, expected: str) -> None:
    assert redact.text(text) == expected


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ({"name": "FERRY_KEY", "value": "x"}, {"name": "FERRY_KEY", "value": "REDACTED"}),
        ({"name": "REDIS_PASS", "value": "x"}, {"name": "REDIS_PASS", "value": "REDACTED"}),
        ({"name": "NODE_NAME", "value": "n1"}, {"name": "NODE_NAME", "value": "n1"}),
        ({"spark.hadoop.fs.s3a.secret.key": "x"}, {"spark.hadoop.fs.s3a.secret.key": "REDACTED"}),
        ({"args": {"password": "x", "key": "auction"}}, {"args": {"password": "REDACTED", "key": "auction"}}),
        (["--token", "x", "--rows", "5"], ["--token", "REDACTED", "--rows", "5"]),
        ({"secret": {"secretName": "a-run"}}, {"secret": {"secretName": "a-run"}}),
        ({"valueFrom": {"secretKeyRef": {"name": "n", "key": "k"}}},) * 2,
        ({"automountServiceAccountToken": False, "token": 7},) * 2,
        ({"ferry.dev/token": "29", "managedFields": [1]}, {"ferry.dev/token": "29"}),
        ({"key": "node.kubernetes.io/not-ready", "operator": "Exists"},) * 2,
    ],
)
def test_documents(value: Any, expected: Any) -> None:
    assert redact.value(value) == expected


def test_a_document_in_an_annotation_is_read() -> None:
    note = json.dumps({"spec": {"spark": {"spark.password": "hunter2"}, "workers": 2}})
    found = redact.value({"annotations": {"kubectl.kubernetes.io/last-applied-configuration": note}})
    assert "hunter2" not in str(found) and '"workers":2' in str(found)
