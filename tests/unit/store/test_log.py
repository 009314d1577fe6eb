"""The log of deltas, the record and the lock."""

import os
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest

from ferry.contract.errors import Exhausted, Refusal
from ferry.contract.names import Attempt, CommitId, Step
from ferry.store import mapped
from ferry.store.commit_record import CommitRecord
from ferry.store.lock import DirectoryLock
from ferry.store.log import DeltaLog

BATCH = pa.record_batch({"x": [1, 2, 3], "y": ["a", None, "c"]})


def commit_id(epoch: int, operator: int = 0, generation: int = 1, number: int = 1) -> CommitId:
    return CommitId(Step(epoch, operator), Attempt(generation, number))


def test_entries_survive_reopening_and_are_forgotten_by_step(tmp_path: Path) -> None:
    log = DeltaLog(tmp_path)
    log.append(commit_id(1), "0.0", {"watermark": -5}, BATCH)
    log.append(commit_id(1, number=2), "1.0", {}, BATCH.slice(1, 1))
    log.append(commit_id(1, operator=1), "0/0 x", {"a": [1]}, BATCH.slice(0, 0))
    for opened in (log, DeltaLog(tmp_path)):
        assert opened.commit_ids(Step(1, 0)) == [commit_id(1), commit_id(1, number=2)]
        assert opened.entries(commit_id(1)) == [("0.0", {"watermark": -5}, BATCH)]
        (found,) = opened.entries(commit_id(1, operator=1))
        assert found[0] == "0/0 x" and found[2].num_rows == 0 and found[2].schema == BATCH.schema
        assert opened.entries(commit_id(7)) == []
    log.forget(Step(1, 0))
    for opened in (log, DeltaLog(tmp_path)):
        assert opened.commit_ids(Step(1, 0)) == [] and opened.commit_ids(Step(1, 1)) == [commit_id(1, operator=1)]


def test_same_commit_id_and_source_replaces(tmp_path: Path) -> None:
    log = DeltaLog(tmp_path)
    log.append(commit_id(1), "s", {"n": 1}, BATCH)
    log.append(commit_id(1), "s", {"n": 2}, BATCH)
    assert [meta for _, meta, _ in log.entries(commit_id(1))] == [{"n": 2}]


@pytest.mark.parametrize("damage", ["truncated", "flipped meta length", "flipped body", "empty"])
def test_torn_file_is_absent(tmp_path: Path, damage: str) -> None:
    log = DeltaLog(tmp_path)
    log.append(commit_id(1), "s", {"n": 1}, BATCH)
    log.append(commit_id(1), "t", {"n": 1}, BATCH)
    (path,) = tmp_path.glob("*-s.delta")
    content = bytearray(path.read_bytes())
    if damage == "truncated":
        del content[len(content) // 2 :]
    elif damage == "empty":
        content.clear()
    else:
        content[12 if damage == "flipped meta length" else -20] ^= 1
    path.write_bytes(content)
    (tmp_path / "x.tmp").write_bytes(b"half")
    assert [source for source, _, _ in DeltaLog(tmp_path).entries(commit_id(1))] == ["t"]
    assert not (tmp_path / "x.tmp").exists()


def test_full_disk_is_exhausted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mapped, "RESERVE_BYTES", 1 << 62)
    with pytest.raises(Exhausted, match="bytes are needed"):
        DeltaLog(tmp_path).append(commit_id(1), "s", {}, BATCH)


def test_mark_is_replaced_and_a_torn_write_leaves_the_one_before(tmp_path: Path) -> None:
    record = CommitRecord(tmp_path / "deep" / "record")
    assert record.read() is None
    first, second = {"commit_id": [1, 2], "watermark": -(2**62)}, {"commit_id": [1, 3], "watermark": 7}
    record.write(first)
    assert CommitRecord(record.path).read() == first
    record.write(second)
    assert CommitRecord(record.path).read() == second
    content = bytearray(record.path.read_bytes())
    for at in (0, 5, 9, 17):  # checksum, length, number and body of the second document, in the first slot
        torn = content.copy()
        torn[at] ^= 1
        record.path.write_bytes(torn)
        assert CommitRecord(record.path).read() == first
    record.path.write_bytes(b"")
    assert CommitRecord(record.path).read() is None


def test_mark_goes_on_counting_after_reopening(tmp_path: Path) -> None:
    for number in range(5):
        CommitRecord(tmp_path / "record").write({"number": number})
    assert CommitRecord(tmp_path / "record").read() == {"number": 4}


def test_lock_is_held_by_one_process(tmp_path: Path) -> None:
    held = DirectoryLock(tmp_path)
    with pytest.raises(Refusal, match=r"in use by process \d+"):
        DirectoryLock(tmp_path)
    code = "import sys,pathlib; from ferry.store.lock import DirectoryLock; DirectoryLock(pathlib.Path(sys.argv[1]))"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    other = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, env=environment)
    assert other.returncode != 0 and "in use by process" in other.stderr
    held.release()
    DirectoryLock(tmp_path).release()
