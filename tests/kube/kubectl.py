"""Runs the real `kubectl` against one cluster. It asserts nothing itself; a command that fails raises what was said."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from tests.patience import PATIENCE

Document = dict[str, Any]

TIMEOUT_SECONDS = 60.0


class KubectlError(Exception):
    """A command that did not succeed: what it was and what it said."""

    def __init__(self, command: Sequence[str], code: int | None, said: str) -> None:
        super().__init__(f"{' '.join(command)}: {'no answer' if code is None else f'exit code {code}'}\n{said.strip()}")
        self.code, self.said = code, said.strip()


@dataclass(frozen=True)
class Kubectl:
    """kubectl with a kubeconfig and, once chosen, a namespace."""

    program: str
    kubeconfig: Path
    namespace: str | None = None

    def within(self, namespace: str | None) -> Kubectl:
        """The same, in a namespace; None: that of the kubeconfig."""
        return replace(self, namespace=namespace)

    def command(self, *arguments: str) -> list[str]:
        """The whole command line."""
        chosen = () if self.namespace is None else ("--namespace", self.namespace)
        return [self.program, *chosen, *arguments]

    def environment(self) -> dict[str, str]:
        """What a process needs to reach the cluster."""
        return {**os.environ, "KUBECONFIG": str(self.kubeconfig)}

    def run(self, *arguments: str, stdin: str | None = None, timeout: float = TIMEOUT_SECONDS) -> str:
        """Standard output of a command that succeeds."""
        command = self.command(*arguments)
        try:
            done = subprocess.run(
                command, input=stdin, capture_output=True, text=True, timeout=timeout, env=self.environment()
            )
        except subprocess.TimeoutExpired as late:
            raise KubectlError(command, None, f"after {timeout:g} s") from late
        if done.returncode != 0:
            raise KubectlError(command, done.returncode, done.stderr + done.stdout)
        return done.stdout

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        """A command that goes on while the test does something else."""
        return subprocess.Popen(
            self.command(*arguments),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=self.environment(),
        )

    def refusal(self, *arguments: str, stdin: str | None = None) -> str:
        """What a command that must not succeed says; AssertionError when it succeeds."""
        try:
            said = self.run(*arguments, stdin=stdin)
        except KubectlError as refused:
            if refused.code is None:
                raise
            return refused.said
        raise AssertionError(f"{' '.join(self.command(*arguments))} was not refused: {said}")

    def apply(self, *documents: Mapping[str, Any], options: Sequence[str] = ()) -> str:
        """`kubectl apply` of documents."""
        return self.run("apply", *options, "-f", "-", stdin=yaml.safe_dump_all(list(documents)))

    def create(self, *documents: Mapping[str, Any]) -> str:
        """`kubectl create` of documents that the test is sure of: kubectl need not look them over first."""
        return self.run("create", "--validate=false", "-f", "-", stdin=yaml.safe_dump_all(list(documents)))

    def get(self, *what: str) -> Document:
        """An object, or a list of them."""
        found: Document = json.loads(self.run("get", *what, "-o", "json"))
        return found

    def find(self, *what: str) -> Document | None:
        """An object, or None when there is none."""
        found = self.run("get", *what, "-o", "json", "--ignore-not-found")
        return json.loads(found) if found.strip() else None

    def items(self, *what: str) -> list[Document]:
        """The objects of a list."""
        found: list[Document] = self.get(*what)["items"]
        return found

    def patch(self, what: str, patch: Mapping[str, Any], subresource: str | None = None) -> None:
        """A merge patch."""
        of = [] if subresource is None else [f"--subresource={subresource}"]
        self.run("patch", what, "--type=merge", *of, "-p", json.dumps(patch))


def wait_until(true: Callable[[], Any], what: str, seconds: float, every: float = 0.2) -> float:
    """Seconds until `true` is; TimeoutError after `PATIENCE` times `seconds`. kubectl's own failures count as not yet."""
    began, last = time.monotonic(), ""
    while True:
        try:
            if true():
                return time.monotonic() - began
        except KubectlError as failed:
            last = f"; at last: {failed}"
        if time.monotonic() - began > PATIENCE * seconds:
            raise TimeoutError(f"no {what} after {PATIENCE * seconds:g} s{last}")
        time.sleep(every)
