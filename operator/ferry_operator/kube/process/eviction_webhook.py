"""The webhook for evictions: an eviction of a pod with state is noted on the pod, and refused until the pod may leave.

Every process of the operator serves; the pods tell them what to answer. A refusal has the code 429, after which clients
such as `kubectl drain` ask again. The API server ignores a webhook that does not answer: then the budget alone decides.

Any pod of the cluster may reach the port, and a request would empty a worker of any namespace. So the API server alone
knows the path: it is derived from the keys, and stands in an object of the cluster that tenants cannot read.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import logging
import threading
import time
from base64 import b64encode
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from ferry.contract import certificates
from ferry.system.sockets import listening
from ferry.system.wsgi import Start, ThreadedServer
from ferry_operator.kube.api import names
from ferry_operator.kube.api.names import Doc
from ferry_operator.kube.api.port import JOBS, NOT_FOUND, PODS, UNFIT, WEBHOOKS, Api, ApiError, ClusterApi, tolerate
from ferry_operator.kube.observe import facts, holds
from ferry_operator.kube.observe.evictions import refusal

log = logging.getLogger("ferry.operator")

PATH = "/evictions/"
"""Beginning of the path of requests."""

BYTES_MAX = 1 << 20
"""Bytes of a request."""

REGISTER_SECONDS, AGAIN_SECONDS = 60.0, 5.0
"""Between two writes of the authority, and between two looks whether this process leads."""

TOO_MANY, OK = 429, "200 OK"


class EvictionWebhook:
    """Serves on threads of its own, from `start` to `close`."""

    def __init__(
        self,
        api: ClusterApi,
        configuration: str,
        host: str,
        keys: Callable[[], Mapping[int, str]],
        leads: Callable[[], bool],
        port: int,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`configuration`: name of the ValidatingWebhookConfiguration; `host`: name of the service; `keys`: keys of the
        installation, from which the authority is derived; `leads`: whether this process holds the Lease."""
        self._api = api
        self._configuration = configuration
        self._host = host
        self._keys = keys
        self._leads = leads
        self._clock = clock
        self._known: Mapping[int, str] = {}
        self._context = certificates.server_context(certificates.issue(_authority_key("none"), host))
        self._server = ThreadedServer(listening("", port), self._serve, self._context)
        self.port = self._server.server_port
        self._end = threading.Event()

    def start(self) -> None:
        """Start to serve."""
        threading.Thread(target=self._server.serve_forever, name="evictions", daemon=True).start()
        threading.Thread(target=self._keep_registered, name="webhook", daemon=True).start()

    def close(self) -> None:
        """End the server."""
        self._end.set()
        self._server.shutdown()
        self._server.server_close()

    # ---- the authority and the path
    def register(self) -> None:
        """Take a certificate of the newest key; the holder of the Lease writes the authorities of all keys, and the path.

        Replicas may know different keys for a moment, so the API server trusts the authorities of all of them, and has the
        path of the oldest key. Raises ApiError.
        """
        keys = self._keys()
        if keys != self._known:
            certificates.load(self._context, certificates.issue(_authority_key(keys[max(keys)]), self._host))
            self._known = keys
        if self._leads():
            trusted = b"".join(certificates.authority(_authority_key(key)) for key in keys.values())
            self._write("caBundle", b64encode(trusted).decode())
            try:
                self._write("service/path", path_of(keys[min(keys)]))
            except ApiError as error:
                tolerate(error, UNFIT)  # somebody has put in a URL, which has a path of its own

    def _write(self, name: str, value: str) -> None:
        change = {"op": "add", "path": f"/webhooks/0/clientConfig/{name}", "value": value}
        self._api.json_patch(WEBHOOKS, self._configuration, [change])

    def _keep_registered(self) -> None:
        """Another program, such as an upgrade of the chart, may remove the authority: it is written again and again."""
        done: tuple[float, bool] | None = None
        while not self._end.is_set():
            leads, now = self._leads(), time.monotonic()
            if done is None or now - done[0] >= REGISTER_SECONDS or (leads and not done[1]):
                try:
                    self.register()
                    done = now, leads
                except ApiError as error:
                    log.info("the webhook for evictions: %s", error)
            self._end.wait(AGAIN_SECONDS)

    # ---- requests
    def answer(self, review: Doc) -> Doc:
        """The answer to an AdmissionReview. Raises ApiError."""
        request = review["request"]
        why = self._refusal(request)
        response: Doc = {"uid": request["uid"], "allowed": why is None}
        if why is not None:
            response["status"] = {"code": TOO_MANY, "reason": "TooManyRequests", "message": why}
        return {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response}

    def _refusal(self, request: Doc) -> str | None:
        name = request.get("name") or (request.get("object") or {}).get("metadata", {}).get("name", "")
        job, api = names.job_of_pod(name), self._api.within(request["namespace"])
        if job is None:
            return None
        pods = api.find(PODS, f"{names.MANAGED}={names.MANAGER},{names.JOB}={job}")
        pod = next((facts.pod(document) for document in pods if document["metadata"]["name"] == name), None)
        why = refusal(pod) if pod is not None else None
        if pod is not None and why is not None:
            why = refusal(pod, self._held(api, job))
        if pod is not None and why is not None and not pod.evicted and not request.get("dryRun"):
            log.info("%s/%s is to be evicted: %s", request["namespace"], name, why)
            noted = {"uid": pod.uid, "annotations": {names.EVICTION: str(int(self._clock()))}}
            try:
                api.patch(PODS, name, {"metadata": noted})
            except ApiError as error:
                tolerate(error, NOT_FOUND)
                return None
        return why

    @staticmethod
    def _held(api: Api, job: str) -> str | None:
        for document in api.find(JOBS, name=job):
            paused = (document["metadata"].get("annotations") or {}).get(names.PAUSED) == "true"
            return holds.reason(paused, (document.get("status") or {}).get("phase") == "Failed")
        return None

    def _serve(self, environ: dict[str, Any], start: Start) -> Iterable[bytes]:
        length, path = int(environ.get("CONTENT_LENGTH") or 0), str(environ.get("PATH_INFO")).encode()
        known = any(hmac.compare_digest(path, path_of(key).encode()) for key in self._known.values())
        if environ.get("REQUEST_METHOD") != "POST" or not known or not 0 < length <= BYTES_MAX:
            return _reply(start, "404 Not Found", b"{}")
        try:
            answer = self.answer(json.loads(environ["wsgi.input"].read(length)))
        except (ValueError, KeyError, TypeError, AttributeError):
            return _reply(start, "400 Bad Request", b"{}")
        except ApiError as error:
            log.info("an eviction is left to the budget: %s", error)
            return _reply(start, "500 Internal Server Error", b"{}")
        return _reply(start, OK, json.dumps(answer).encode())


def path_of(key: str) -> str:
    """The path at which the API server asks, by a key of the installation."""
    return PATH + hmac.new(key.encode(), b"ferry path of evictions", hashlib.sha256).hexdigest()[:48]


def _authority_key(key: str) -> str:
    """The secret of the authority: derived, so that it is not the secret of any run."""
    return f"ferry evictions {key}"


def _reply(start: Start, status: str, body: bytes) -> Iterable[bytes]:
    start(status, [("Content-Type", "application/json"), ("Content-Length", str(len(body)))])
    return [body]
