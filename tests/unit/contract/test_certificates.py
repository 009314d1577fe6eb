"""Whoever knows the secret of a run can prove it, and check others; whoever does not can do neither."""

from __future__ import annotations

import ssl

import pytest

from ferry.contract.certificates import authority, client_context, issue, server_context


def shake(client: ssl.SSLContext, server: ssl.SSLContext) -> str | None:
    """The version of TLS that two sides agree on, in memory."""
    to_client, to_server = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [client.wrap_bio(to_client, to_server), server.wrap_bio(to_server, to_client, server_side=True)]
    waiting = True
    while waiting:
        waiting = False
        for end in ends:
            try:
                end.do_handshake()
            except ssl.SSLWantReadError:
                waiting = True
    return ends[0].version()


def test_processes_of_a_run_believe_each_other_without_having_met() -> None:
    assert shake(client_context(authority("secret")), server_context(issue("secret"))) == "TLSv1.3"


def test_a_process_of_another_run_is_not_believed() -> None:
    with pytest.raises(ssl.SSLCertVerificationError):
        shake(client_context(authority("secret")), server_context(issue("other")))


def test_every_process_has_a_key_of_its_own_and_all_know_one_authority() -> None:
    assert authority("secret") == authority("secret") != authority("other")
    one, two = issue("secret"), issue("secret")
    assert one.key != two.key and one.certificate != two.certificate
    assert b"PRIVATE" not in authority("secret") + one.certificate and "PRIVATE" not in repr(one)
