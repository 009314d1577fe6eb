"""The journal in a real API server: under the rights of a driver, and when answers, rights or the object itself are lost."""

from __future__ import annotations

import base64
import random
import ssl
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from ferry.contract.catalogue import first_catalogue
from ferry.contract.descriptors import Aggregate, OperatorDescriptor, Window
from ferry.contract.errors import SpecRefused, StateUnavailable, Superseded, Unreachable
from ferry.contract.limits import VIRTUAL_NODES_MAX
from ferry.contract.names import InstanceId, Term
from ferry.contract.routing import Group, Table, Version
from ferry.registry import api_journal
from ferry.registry.api_journal import Access, ApiJournal
from ferry_operator.kube.manifests import objects
from tests.kube.kubectl import Document, Kubectl, wait_until
from tests.kube.operators import job
from tests.unit.charts import of_kind, render
from tests.unit.registry.journal_contract import CHECKS, A, Another, B, table
from tests.unit.registry.redis_server import Redis

pytestmark = [pytest.mark.kube, pytest.mark.timeout(120)]

OBJECT_MAX = 1 << 20
"""What etcd takes with room to spare; its limit is one and a half times as much."""

COUNTS = OperatorDescriptor("counts", 0, "aggregate", (("k", "int"),), Window(10, 10), (Aggregate("n", "count"),))
CATALOGUE = first_catalogue([COUNTS])


@dataclass
class Place:
    """The journal of one job, and a driver's access to it."""

    kubectl: Kubectl
    access: Access
    name: str
    redis: Redis
    """of an older release"""

    def journal(self, begun: bool = False) -> ApiJournal:
        """The view of another driver."""
        return ApiJournal(self.access, str(self.kubectl.namespace), self.name, self.redis.journal(), begun)

    def spec(self) -> Document:
        found: Document = self.kubectl.get("streamjobjournal", self.name)["spec"]
        return found

    def make(self) -> None:
        self.kubectl.create(objects.journal(self.kubectl.get("sj", "a"), 1))

    def delete(self) -> None:
        self.kubectl.run("delete", "streamjobjournal", self.name)


@pytest.fixture
def redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Redis]:
    server = Redis(tmp_path_factory.mktemp("r"))
    yield server
    server.end()


@pytest.fixture
def place(kubectl: Kubectl, redis: Redis, tmp_path: Path) -> Place:
    kubectl.apply(job())
    name = objects.journal(kubectl.get("sj", "a"), 1)["metadata"]["name"]
    made = Place(kubectl, access(kubectl, tmp_path, "driver"), name, redis)
    made.make()
    return made


def access(kubectl: Kubectl, directory: Path, account: str) -> Access:
    """Of an account with the rights that the chart gives to drivers."""
    (role,) = of_kind(render(), "Role", "-driver")
    binding = {
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding", "metadata": {"name": account},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": account},
        "subjects": [{"kind": "ServiceAccount", "name": account, "namespace": str(kubectl.namespace)}],
    }  # fmt: skip
    kubectl.create(
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": account}},
        {**role, "metadata": {"name": account}},
        binding,
    )
    config = yaml.safe_load(kubectl.kubeconfig.read_text())
    cluster = config["clusters"][0]["cluster"]
    token, authority = directory / "token", directory / "ca.crt"
    token.write_text(kubectl.run("create", "token", account, "--duration=1h"))
    inline = cluster.get("certificate-authority-data")
    authority.write_bytes(base64.b64decode(inline) if inline else Path(cluster["certificate-authority"]).read_bytes())
    return Access(cluster["server"], token, authority)


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_it_is_one(place: Place, check: Callable[[Another], None]) -> None:
    check(place.journal)


def test_people_see_its_version(place: Place) -> None:
    place.journal().swap(table(1, 0), None)
    place.journal().swap(table(2, 5), Version(1, 0))
    shown = place.kubectl.run("get", "streamjobjournals", "--no-headers").split()
    assert shown[:4] == [place.name, "2", "5", "1"]
    assert place.kubectl.get("streamjobjournal", place.name)["metadata"]["ownerReferences"][0]["name"] == "a"


def test_a_write_whose_answer_was_lost_is_done_already(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    journal = place.journal()
    journal.swap(table(1, 0), None)
    for arrives in (True, False):
        number = place.spec()["number"]
        with monkeypatch.context() as broken:
            broken.setattr(journal, "_client", Losing(journal._client, arrives))
            with pytest.raises(Unreachable, match="does not answer"):
                journal.swap(table(1, number + 1, B), Version(1, number))
        assert place.spec()["number"] == number + arrives
        journal.swap(table(1, number + 1, B), Version(1, number))
        assert place.journal().read() == table(1, number + 1, B)


class Losing:
    """A client whose writes end without an answer, whether they have arrived or not."""

    def __init__(self, client: httpx.Client, arrives: bool) -> None:
        self.client, self.arrives = client, arrives

    def request(self, method: str, *args: Any, **more: Any) -> httpx.Response:
        if method == "PATCH" and not self.arrives:
            raise httpx.ConnectError("lost")
        answer = self.client.request(method, *args, **more)
        if method == "PATCH":
            raise httpx.ReadTimeout("lost")
        return answer


def test_a_write_between_reading_and_writing_is_seen(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of another driver: it is refused. Of somebody who changed nothing of the table: it is tried again."""
    journal, other = place.journal(), place.journal()
    journal.swap(table(1, 0), None)
    write, between = journal._write, [lambda: other.swap(table(2, 0, A), Version(1, 0))]

    def late(found: Document, spec: Document) -> None:
        while between:
            between.pop()()
        write(found, spec)

    monkeypatch.setattr(journal, "_write", late)
    with pytest.raises(Superseded, match="generation 2 "):
        journal.swap(table(1, 1), Version(1, 0))
    between.append(place.delete)
    with pytest.raises(Superseded, match="the journal is gone"):
        journal.swap(table(3, 0), Version(2, 0))
    place.make()
    other = place.journal()
    other.swap(table(2, 0), None)
    between.append(lambda: place.kubectl.run("label", "streamjobjournal", place.name, "seen=yes") and None)
    journal.swap(table(3, 0), Version(2, 0))
    assert place.journal().read() == table(3, 0)


def test_the_largest_table_fits(place: Place) -> None:
    chance = random.Random(7)
    workers = [InstanceId(f"{worker}.{index}") for worker in range(1000) for index in range(2)]
    groups = tuple(
        Group(Term(chance.randrange(100), chance.randrange(10_000)), tuple(chance.sample(workers, 3)))
        for _ in range(VIRTUAL_NODES_MAX)
    )
    large, journal = Table(Version(1, 0), groups), place.journal()
    began = time.monotonic()
    journal.swap(large, None)
    assert place.journal().read() == large
    assert time.monotonic() - began < 5
    assert len(place.spec()["table"]) < OBJECT_MAX * 2 / 3


def test_a_journal_that_is_gone_is_not_begun_anew(place: Place) -> None:
    journal = place.journal()
    journal.swap(table(1, 0), None)
    place.delete()
    for gone in (journal.read, lambda: journal.swap(table(1, 1), Version(1, 0))):
        with pytest.raises(Superseded, match="the journal is gone"):
            gone()
    with pytest.raises(Unreachable, match="the operator makes it"):
        place.journal().read()
    place.make()
    with pytest.raises(Superseded, match="the journal is gone"):
        journal.swap(table(1, 1), Version(1, 0))
    assert place.journal().read() is None
    with pytest.raises(StateUnavailable, match=r"neither in .* nor in Redis"):
        place.journal(begun=True).read()


def test_a_journal_in_redis_is_taken_over_once(place: Place) -> None:
    older = place.redis.journal()
    older.record(CATALOGUE, 3)
    older.swap(table(3, 4), None)
    assert place.journal().catalogue() == CATALOGUE
    one, two = place.journal(begun=True), place.journal(begun=True)
    one.record(CATALOGUE, 3)
    assert one.read() == two.read() == table(3, 4)
    older.swap(table(3, 5), Version(3, 4))
    with pytest.raises(Superseded, match="generation 3 "):
        one.swap(table(4, 0), Version(3, 4))
    assert one.read() == table(3, 5)
    one.swap(table(4, 0, A), Version(3, 5))
    for late in (lambda: older.swap(table(3, 6), Version(3, 5)), lambda: two.swap(table(4, 0, B), Version(3, 4))):
        with pytest.raises(Superseded):
            late()
    with pytest.raises(Superseded, match=f"what streamjobjournals/{place.name} held"):
        place.redis.journal().read()
    place.redis.end()
    assert place.journal(begun=True).read() == table(4, 0, A)
    one.swap(table(4, 1), Version(4, 0))
    place.redis.start()


def test_a_takeover_that_was_cut_short_is_finished_by_the_next_driver(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.redis.journal().swap(table(3, 4), None)
    one = place.journal()
    assert one.read() == table(3, 4)
    with monkeypatch.context() as broken:
        broken.setattr(one, "_client", Losing(one._client, arrives=False))
        with pytest.raises(Unreachable):
            one.swap(table(4, 0, A), Version(3, 4))
    with pytest.raises(Superseded, match="generation 4 "):
        place.redis.journal().swap(table(4, 0, B), Version(3, 4))
    two = place.journal()
    assert two.read() == table(4, 0, A)
    two.swap(table(5, 0, B), Version(4, 0))
    with pytest.raises(Superseded, match="generation 5 "):
        one.swap(table(4, 0, A), Version(3, 4))
    assert place.journal().read() == table(5, 0, B)


def test_operators_are_kept_where_the_table_is(place: Place) -> None:
    place.journal().record(CATALOGUE, 3)
    place.redis.end()
    assert place.journal().catalogue() == CATALOGUE
    place.redis.start()


def test_a_driver_may_do_nothing_else(place: Place, tmp_path: Path) -> None:
    me = f"system:serviceaccount:{place.kubectl.namespace}:driver"
    may = place.kubectl.run("auth", "can-i", "--list", f"--as={me}", "--no-headers")
    mine = [line.split() for line in may.splitlines() if "selfsubject" not in line and "[]" in line]
    assert [line for line in mine if not line[0].startswith(("[/", "["))] == [
        ["streamjobjournals.ferry.dev", "[]", "[]", "[get", "patch]"]
    ], may
    url = f"{place.access.url}/apis/ferry.dev/v1alpha1/namespaces/{place.kubectl.namespace}/streamjobjournals"
    with httpx.Client(verify=ssl.create_default_context(cafile=place.access.authority), trust_env=False) as client:
        headers = {"Authorization": f"Bearer {place.access.token.read_text()}"}
        assert client.get(url, headers=headers).status_code == 403
        assert client.delete(f"{url}/{place.name}", headers=headers).status_code == 403


def test_a_driver_without_the_right_is_told_so(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    place.kubectl.run("delete", "rolebinding", "driver")
    journal = place.journal()
    wait_until(lambda: not journal.is_reachable(), "end of the right", 20)
    for ask in (journal.read, journal.catalogue):
        with pytest.raises(Unreachable, match=r"jobs\.driverAccounts"):
            ask()
    monkeypatch.setattr(api_journal, "FORBIDDEN_SECONDS", 0.0)
    for ask in (journal.read, journal.catalogue):
        with pytest.raises(SpecRefused, match=r"jobs\.driverAccounts"):
            ask()


def test_whether_it_can_be_reached(place: Place) -> None:
    assert place.journal().is_reachable()
    away = replace(place, access=replace(place.access, url="https://127.0.0.1:1")).journal()
    assert not away.is_reachable()
    for ask in (away.read, lambda: away.swap(table(1, 0), None)):
        with pytest.raises(Unreachable, match="the API server does not answer"):
            ask()
