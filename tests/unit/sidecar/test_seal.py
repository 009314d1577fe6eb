"""Files of an instance in another boot of the machine: a copy after a clean end, and after no other one."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgpack
import numpy as np
import pyarrow as pa
import pytest

from ferry.contract import messages as m
from ferry.contract.descriptors import OperatorDescriptor, Window
from ferry.contract.epoch_times import EpochTimes
from ferry.contract.errors import StateUnavailable
from ferry.contract.names import CommitId, Fragment, Step
from ferry.contract.programs import first_program
from ferry.contract.routing import Version
from ferry.kernels.columns import shares_of
from ferry.process.shapes import shape_of
from ferry.protocol import instance as core
from ferry.sidecar import data
from ferry.sidecar.attempt_data import ComputedDelta
from ferry.sidecar.data import BeginsAnew, Data
from ferry.spark.tasks.fragment import Fragmenter
from ferry.store import seal
from ferry.store.commit_record import SLOT_BYTES
from ferry.store.process import ProcessState
from tests.unit.sidecar.test_data import ALL, ATTEMPT, DESCRIPTOR, ME, STEP, VNODES, settings_of
from tests.unit.store.processes import Everything

KEY, INPUT = pa.schema([("k", pa.int64())]), pa.schema([("n", pa.int64()), ("text", pa.string())])
PROCESS = OperatorDescriptor(
    "p", 1, "process", (("k", "int"),), Window(1, 1), process=shape_of("p", Everything(), KEY, [INPUT], None)
)
COMMITTED = CommitId(STEP, ATTEMPT)
NEW = core.InstanceRecord(programs=first_program(2))
SAVED = core.InstanceRecord(1, COMMITTED, holds=ALL, released=0, programs=first_program(2))


class Machine:
    """A machine on which one instance lives; `power` starts it anew."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory / "workers" / "0" / "0"
        self.directory.mkdir(parents=True, exist_ok=True)
        self._run = directory
        self.boot_id = directory / "boot_id"
        self._last: Data | None = None
        self.power()

    def power(self) -> None:
        """Another boot. What the disk lacks is not lost here: nobody may rely on that it is there."""
        self.boot_id.write_text(f"{os.urandom(8).hex()}\n")

    def start(self, run: str = "j-1") -> Data:
        settings = settings_of(self._run)
        object.__setattr__(settings, "run", run)
        if self._last is not None:
            state = self._last.states[1]
            assert isinstance(state, ProcessState)
            state._entries.close()  # as the end of the process does
        self._last = None
        self._last = Data(
            settings, ME, self.directory, [DESCRIPTOR, PROCESS], lambda *a: None, lambda *a: True, boot_id=self.boot_id
        )
        return self._last

    def fill(self) -> Data:
        """A life with an epoch in its state, and one in its log."""
        one = self.start()
        one.saved()
        for number, (state, descriptor) in enumerate(zip(one.states, (DESCRIPTOR, PROCESS), strict=True)):
            f = Fragmenter(descriptor, groups_max=1000)
            columns: dict[str, list[Any]] = {"k": list(range(500)), "t": [1] * 500}
            if number:
                columns |= {"n": [1] * 500, "text": ["a"] * 500}
            f.add(pa.record_batch(columns), ["k"], "t")
            parts = [state.combine(f.drain())]
            change, _ = state.delta(parts, EpochTimes(0, 0, STEP.epoch, 10), np.arange(VNODES))
            state.apply(change, STEP.epoch, "x")
        one.receive(delta := m.Delta(STEP, ATTEMPT, Version(1, 1), ME, (ME,), ALL, 0, 0), None)
        empty = one.states[0].combine([])
        offsets = np.zeros(VNODES + 1, np.int64)
        one.attempt._computed[COMMITTED] = ComputedDelta(empty, offsets, {}, shares_of(empty, offsets, []), None)
        assert not empty.num_rows
        one._log.append(COMMITTED, "x", {"delta": m.encode(delta)}, empty)
        one.perform(core.Save(SAVED))
        return one


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def is_whole(one: Data) -> bool:
    entries = [int(state.statistics()["entries"].sum()) for state in one.states]
    if one.saved() != SAVED:
        assert one.saved() == NEW and entries == [0, 0] and one.logged() == ()
        return False
    assert entries[0] == 500 and entries[1] >= 500 and len(one.logged()) == 1
    return True


def test_a_clean_end_is_a_copy_in_another_boot(machine: Machine) -> None:
    machine.fill().seal()
    machine.power()
    assert is_whole(machine.start())


def test_an_unclean_end_is_none_and_says_so(machine: Machine, caplog: pytest.LogCaptureFixture) -> None:
    machine.fill()
    machine.power()
    assert not is_whole(machine.start())
    assert "without a clean end" in caplog.text


def test_a_start_breaks_the_seal_also_in_the_same_boot(machine: Machine) -> None:
    machine.fill().seal()
    assert is_whole(machine.start())
    machine.power()
    assert not is_whole(machine.start())


def test_a_seal_is_good_for_one_start_in_another_boot(machine: Machine) -> None:
    machine.fill().seal()
    machine.power()
    assert is_whole(machine.start())
    assert is_whole(machine.start()), "a process that is killed comes back to its files"
    machine.power()
    assert not is_whole(machine.start())


def test_the_seal_of_another_run_is_none(machine: Machine) -> None:
    machine.fill().seal()
    for run in ("j-2", "j-1"):
        machine.power()
        assert not is_whole(machine.start(run))


def test_a_crash_between_the_sync_and_the_seal_leaves_none(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise OSError(5, "Input/output error")

    one = machine.fill()
    with monkeypatch.context() as patch, pytest.raises(OSError):
        patch.setattr(os, "replace", fail)
        one.seal()
    machine.power()
    assert not is_whole(machine.start())


@pytest.mark.parametrize("fails", ["break_open", "unlink"])
def test_a_process_that_is_killed_while_it_breaks_the_seal_loses_nothing(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, fails: str
) -> None:
    machine.fill().seal()
    machine.power()
    killed = _killed_after(seal.break_open) if fails == "unlink" else _killed_after(lambda directory: None)
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(seal, "break_open", killed)
        machine.start()
    if fails == "break_open":
        machine.power()  # and nothing was changed yet
    assert is_whole(machine.start())


def _flip(path: Path, at: int) -> None:
    content = bytearray(path.read_bytes())
    content[at % len(content)] ^= 4
    path.write_bytes(content)


def test_any_bit_of_the_seal_is_noticed(machine: Machine) -> None:
    machine.fill().seal()
    sealed = (machine.directory / seal.SEAL).read_bytes()
    for at in range(len(sealed)):
        (machine.directory / seal.SEAL).write_bytes(sealed)
        _flip(machine.directory / seal.SEAL, at)
        with pytest.raises(StateUnavailable, match="sealed is damaged"):
            seal.read(machine.directory)


def test_a_seal_of_an_older_release_is_read(machine: Machine) -> None:
    (machine.directory / seal.SEAL).write_bytes(msgpack.packb({"of": "j 5", "saved": {"generation": 1}}))
    assert seal.read(machine.directory) == {"of": "j 5", "saved": {"generation": 1}}


def test_a_damaged_seal_says_why_nothing_is_there(machine: Machine) -> None:
    machine.fill().seal()
    _flip(machine.directory / seal.SEAL, 40)
    machine.power()
    one = machine.start()
    assert not is_whole(one) and "sealed is damaged" in one.damage


def test_a_damaged_seal_costs_nothing_in_the_same_boot(machine: Machine) -> None:
    machine.fill().seal()
    _flip(machine.directory / seal.SEAL, 40)
    one = machine.start()
    assert is_whole(one) and not one.damage


def _both_slots(path: Path) -> None:
    for at in (20, SLOT_BYTES + 20):
        _flip(path, at)


@pytest.mark.parametrize("harm", [_both_slots, Path.unlink, lambda path: path.write_bytes(b"")])
def test_state_without_its_record_is_damage_and_nothing_of_it_is_used(
    machine: Machine, harm: Callable[[Path], Any]
) -> None:
    assert not machine.start().damage, "nothing was here"
    machine.fill()
    harm(machine.directory / "commit-record")
    one = machine.start()
    assert not is_whole(one) and "commit-record is missing, or damaged" in one.damage


def _killed_after(act: Callable[[Path], None]) -> Callable[[Path], None]:
    def killed(directory: Path) -> None:
        act(directory)
        raise KeyboardInterrupt

    return killed


def test_nothing_is_changed_before_the_seal_is_off_the_disk(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    machine.fill().seal()
    before = {p: p.stat().st_mtime_ns for p in machine.directory.rglob("*") if p.is_file()}
    synced = Synced(monkeypatch)

    def first_change(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(data, "DeltaLog", first_change)
    with pytest.raises(KeyboardInterrupt):
        machine.start()
    assert not (machine.directory / seal.SEAL).exists()
    assert synced.paths == [machine.directory], "the folder that it was in"
    after = {p: p.stat().st_mtime_ns for p in machine.directory.rglob("*") if p.is_file()}
    assert {p.name for p in before if before[p] != after.get(p)} == {seal.SEAL, "commit-record"}


class Synced:
    """What was synced, in order."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.paths: list[Path] = []
        self.before_seal: set[Path] = set()
        fsync, replace = os.fsync, os.replace

        def note(handle: int) -> None:
            fsync(handle)
            self.paths.append(Path(os.readlink(f"/proc/self/fd/{handle}")))

        def name(old: Path, new: Path) -> None:
            if new.name == seal.SEAL:
                self.before_seal = set(self.paths)
            replace(old, new)

        monkeypatch.setattr(os, "fsync", note)
        monkeypatch.setattr(os, "replace", name)


def test_all_files_and_folders_are_on_the_disk_before_the_seal_is_there(
    machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = machine.fill()
    (machine.directory / "flight.sock").symlink_to("/dev/null")  # what is no file of its own
    synced = Synced(monkeypatch)
    one.seal()
    below = {p for p in machine.directory.rglob("*") if p.name not in ("flight.sock", seal.SEAL)}
    above = {machine.directory, tmp_path, tmp_path / "workers", tmp_path / "workers" / "0"}
    hidden = machine.directory / f".{seal.SEAL}.tmp"
    assert synced.before_seal == below | above | {hidden}
    assert {p.name for p in below} >= {"data.mdb", "commit-record", "log", "state-0", "state-1"}
    assert synced.paths[-1] == machine.directory, "it has its name on the disk, too"


@contextlib.contextmanager
def disk(image: Path, folder: Path) -> Iterator[Path]:
    """A file system in a file, which has what that disk would have; skips without the right to mount one."""
    folder.mkdir()
    if subprocess.run(["mount", "-o", "loop", image, folder], capture_output=True).returncode:
        pytest.skip("mounting a file system needs root")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", folder], check=True)


@pytest.mark.parametrize(
    ("ends", "whole"),
    [("stopped", True), ("killed", False), ("stopped and started", False)],
)
def test_what_a_disk_has_after_a_power_cut(tmp_path: Path, ends: str, whole: bool) -> None:
    image, kept = tmp_path / "disk", tmp_path / "kept"
    with image.open("wb") as file:
        file.truncate(512 << 20)
    subprocess.run(["mkfs.ext4", "-q", "-F", image], check=True)
    with disk(image, tmp_path / "before") as folder:
        machine = Machine(folder)
        os.sync()
        one = machine.fill()
        if ends != "killed":
            one.seal()
        if ends == "stopped and started":
            machine.start().perform(core.Drop(ALL))
        # What the system has not written yet is in no file of the host.
        subprocess.run(["cp", "--sparse=always", image, kept], check=True)
    with disk(kept, tmp_path / "after") as folder:
        again = Machine(folder)
        assert (again.directory / seal.SEAL).exists() == whole
        assert is_whole(again.start()) == whole


def test_what_was_dropped_is_not_nothing(machine: Machine) -> None:
    """Another life of the job begins without traces of it, as how far rows were released."""
    assert machine.start()._record.empty
    one = machine.fill()
    assert not one._record.empty
    one.perform(core.Save(core.InstanceRecord(1, released=STEP.epoch)))
    one = machine.start()
    one.saved()
    with pytest.raises(BeginsAnew, match="the files here are older"):
        one.perform(core.Save(core.InstanceRecord(1, origin="x#2")))
        one.perform(core.Erase())
    one = machine.start()
    assert one._record.empty and one.saved().origin == "x#2"
    state = one.states[1]
    assert isinstance(state, ProcessState) and state._entries.released == -1


def test_whose_epochs_are_over_is_not_new(machine: Machine) -> None:
    """It has helped the life before, whose epochs were further: they come once more, and are not over."""
    one = machine.start()
    one.saved()
    one.perform(core.Save(core.InstanceRecord(1, released=5)))
    one.perform(core.Forget(5, (0, 0)))
    one.perform(core.Save(core.InstanceRecord(2, origin="x#2")))
    with pytest.raises(BeginsAnew, match="the files here are older"):
        one.perform(core.Erase())
    machine.start().staging.claim(Fragment(Step(5, 0), 2, 1, 0))
