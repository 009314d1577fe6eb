"""Deploys of a run on this machine: copies the program into the run, compares it, and asks the driver.

The driver answers later: `programs` has the outcome. Must never change the run before the program is built and compared.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ferry.contract.catalogue import Catalogue
from ferry.contract.descriptors import OperatorDescriptor
from ferry.contract.errors import FerryError, SpecRefused, Unreachable
from ferry.contract.program_diff import OperatorFate, program_diff
from ferry.contract.run_directory import DRIVER, DriverAddress
from ferry.contract.settings import RunSettings
from ferry_operator.control.driver_client import DriverClient
from ferry_operator.local import check, program
from ferry_operator.local.registry import outcome

Document = dict[str, Any]

IN_FORCE = ("in force", "first epoch")
"""States of the program that the next epoch has; in its first epoch it may still be taken back."""

NOT_READ_AGAIN = "files that it reads at import are not read again by a process that has imported it"


class JobEnded(FerryError):
    """The run has ended: no driver will answer."""


class LocalDeploys:
    """The programs of one run. All methods that ask the driver may raise JobEnded."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._settings = RunSettings.read(directory / "run.json")
        self._client = DriverClient()
        self._asked: dict[int, Document] = {}
        self._attempt = secrets.token_hex(8)
        self._leaves: int | None = None
        """The program to leave by a rewind: the request may be repeated to a driver that has left it already."""

    def programs(self) -> list[Document]:
        """All programs that the driver remembers, the newest first. Raises DriverRefuses, Unreachable.

        Without a program that has the number of a deploy from here and is another one: the driver has died before it had
        journaled the deploy, and the next driver has used the number again.
        """
        listed: list[Document] = self._call("GET", "programs", "for its programs")
        return [one for one in listed if one.items() >= self._asked.get(one["number"], {}).items()]

    def compared(
        self, file: Path | None, change: Callable[[Document], Document], wait: float
    ) -> tuple[list[OperatorFate], Document]:
        """The fate of each operator, and the request that deploys the program. Raises SpecRefused, Unreachable.

        The driver refuses the request if another program is in force by then than the one compared with.

        `file`: the program; None: the text of the program in force.
        `change` returns the arguments of the program from the present arguments. `wait`: seconds that the user waits.
        """
        now = self._now()  # Before its operators: the request is of this program, or of none.
        answer = self._call("GET", "catalogue", "for its operators")
        catalogue = Catalogue.load(answer["catalogue"])
        arguments = change(dict(now["arguments"]))
        module, path, folder = now["module"], now["file"], now["folder"]
        if file is not None:
            module, path = None, str(file.absolute())
            folder = program.copy(None, path, self._directory)
        output, events = self._settings.output, self._settings.events
        checked = check.deployable((module, path, folder), arguments, output, events, wait)
        if checked.refused or checked.operators is None:
            raise SpecRefused(checked.refused or "the program was not built")
        if changed := catalogue.changed_source(checked.sources or ()):
            raise SpecRefused(changed)
        operators = [OperatorDescriptor.from_wire(one) for one in checked.operators]
        diff = program_diff(catalogue, answer["inForce"], operators)
        request = {"module": module, "file": path, "folder": folder, "arguments": arguments, "base": now["number"]}
        return list(diff.fates), request

    def known_text(self, request: Document) -> str:
        """A sentence if a program of the run has the files of this request; else empty. Raises Unreachable.

        Processes of the run have imported them, and files of data that they read may have changed since.
        """
        same = [one for one in self.programs() if one["folder"] and one["folder"] == request["folder"]]
        equal = [one for one in same if one["arguments"] == request["arguments"]]
        if not same:
            return ""
        what = "the text and the arguments are those" if equal else "the text is that"
        return f"{what} of program {(equal or same)[0]['number']}: {NOT_READ_AGAIN}"

    def state_bytes(self) -> int:
        """Bytes of all state as its leaders have it, without replicas. Raises DriverRefuses, Unreachable."""
        load = self._call("GET", "status", "for the size of its state")["load"]
        return int(sum(size for _, size in load["vnodes"]))

    def deploy(self, request: Document) -> int:
        """Begin a deploy; the number of the program. Raises DriverRefuses, Unreachable."""
        number = int(self._call("PUT", "program", "to deploy a program", request)["number"])
        self._asked[number] = {
            name: request[name] for name in ("module", "file", "folder", "arguments") if name in request
        }
        return number

    def rollback(self, to: int | None, rewind: bool = False) -> int:
        """Deploy an earlier program again; its new number. Raises DriverRefuses, Unreachable.

        `rewind`: go back to the state before the program in force; the number of its program, which it keeps.
        """
        body: Document = {"to": to, "attempt": self._attempt}
        if rewind:
            self._leaves = self._leaves or int(self._now()["number"])
            body |= {"rewind": True, "leaves": self._leaves}
        return int(self._call("POST", "rollback", "to roll back", body)["number"])

    def _now(self) -> Document:
        now = next((one for one in self.programs() if one["state"] in IN_FORCE), None)
        if now is None:
            raise Unreachable("the driver does not know its program yet")
        return now

    def _call(self, method: str, path: str, purpose: str, document: Document | None = None) -> Any:
        try:
            return self._client.call(method, f"{self._url()}/{path}", self._settings.secret, purpose, document)
        except Unreachable:
            if how := outcome(self._directory):
                raise JobEnded(f"{self._settings.job} has {how}") from None
            raise

    def _url(self) -> str:
        try:
            return DriverAddress.load((self._directory / DRIVER).read_text()).url
        except (OSError, ValueError, KeyError, TypeError):
            raise Unreachable("the driver does not answer yet: it is starting") from None
