"""`spec.autoscale`: what may be asked for."""

from __future__ import annotations

from typing import Any

import pytest

from ferry_operator.control.scaling_sizes import policy_for
from ferry_operator.crd.rule import BASE, patched
from ferry_operator.job import spec
from ferry_operator.job.models import Spec
from ferry_operator.job.spec import JobRefused


def job(**fields: Any) -> Spec:
    return spec.check(patched(BASE, {"spec": fields})).spec


def test_there_is_none_without_a_maximum() -> None:
    assert policy_for(job(), 2, 1) is None
    assert policy_for(job(autoscale={"mode": "auto"}), 2, 1) is None


def test_what_is_asked_for_is_what_decides() -> None:
    asked = job(autoscale={"min": 2, "max": 16, "utilisation": "65%", "cooldown": "90s", "mode": "auto"})
    found = policy_for(asked, 2, 0)
    assert found is not None
    assert (found.min, found.max, found.utilisation, found.cooldown, found.mode) == (2, 16, 0.65, 90.0, "auto")
    assert (found.slots, found.instances_max, found.virtual_nodes) == (2, 1, 64)
    assert spec.load(spec.dump(spec.check(patched(BASE, {"spec": {"autoscale": {"max": 4}}})))).spec.autoscale.max == 4


@pytest.mark.parametrize(
    ("replicas", "asked", "least"),
    [
        (1, {"max": 8}, 2),
        (2, {"max": 8}, 3),
        (1, {"max": 1}, 1),
        (1, {"max": 8, "min": 1}, 1),
        (1, {"max": 8, "min": 4}, 4),
    ],
)  # fmt: skip
def test_copies_stay_unless_the_user_gives_them_up(replicas: int, asked: dict[str, Any], least: int) -> None:
    found = policy_for(job(workers=4, state={"replicas": replicas}, autoscale=asked), 2, 0)
    assert found is not None and found.min == least


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"autoscale": {"min": 5, "max": 4}}, "'min' is 5, which is more than 'max', 4"),
        ({"autoscale": {"min": 0, "max": 4}}, "min"),
        ({"autoscale": {"max": 4, "utilisation": "0%"}}, "utilisation"),
        ({"autoscale": {"max": 4, "utilisation": "101%"}}, "utilisation"),
        ({"autoscale": {"max": 4, "utilisation": 0.7}}, "utilisation"),
        ({"autoscale": {"max": 4, "cooldown": "0s"}}, "must be between '1s' and '24h'"),
        ({"autoscale": {"max": 4, "mode": "on"}}, "mode"),
        ({"autoscale": {"max": 4, "minimum": 1}}, "did you mean"),
        ({"workers": 3, "state": {"replicas": 2}, "autoscale": {"max": 2}}, "'autoscale.max' must be more"),
        ({"workers": 3, "state": {"replicas": 2}, "autoscale": {"min": 1, "max": 4}}, "every copy needs a worker of its own"),
        ({"autoscale": {"min": 2, "max": 65}}, "more than the 64 virtual nodes"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(JobRefused, match=words.replace("(", "\\(")) as refused:
        job(**fields)
    assert "autoscale" in str(refused.value)
