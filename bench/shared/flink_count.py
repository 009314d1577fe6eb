"""A job of Flink whose state has a given size: `CountJob.java`, the counterpart of `bigstate.py`.

Its sinks say when they put something out, each in a file of its own, in steps of 5 ms.
"""

from __future__ import annotations

from pathlib import Path

from bench.shared.flink import FlinkCluster, compiled

SOURCE = Path(__file__).with_name("CountJob.java")

ROCKSDB = {
    "state.backend.type": "rocksdb", "execution.checkpointing.incremental": "true",
    "execution.checkpointing.externalized-checkpoint-retention": "RETAIN_ON_CANCELLATION",
}  # fmt: skip


class FlinkCount:
    """One job in a cluster, through all its lives."""

    def __init__(self, cluster: FlinkCluster, keys: int, payload: int, rate: int, parallelism: int) -> None:
        """`payload`: bytes of a row; `rate`: records/s once every key was there."""
        self.cluster, self.keys, self.parallelism = cluster, keys, parallelism
        self._arguments = [str(keys), str(payload - 20), str(rate), str(cluster.work / "out")]
        self._jar = compiled(cluster.home, cluster.work, SOURCE)
        self.id = ""

    def submit(self, **more: str) -> None:
        """Another life of it."""
        self.id = self.cluster.submit(self._jar, "CountJob", self.parallelism, self._arguments, **more)

    def rows(self) -> int:
        """That it has counted."""
        vertices = self.cluster.get(f"/jobs/{self.id}")["vertices"]
        return int(next(v for v in vertices if "count" in v["name"])["metrics"]["read-records"] or 0)

    def until_filled(self) -> None:
        """Wait until every key is there."""
        self.cluster.until(lambda: self.rows() >= self.keys, f"{self.keys} keys", 1800)

    def newest_checkpoint(self) -> str:
        """Where it is."""
        return str(self.cluster.get(f"/jobs/{self.id}/checkpoints")["latest"]["completed"]["external_path"])

    def until_checkpoints(self, more: int) -> None:
        """Wait for so many; the second one is begun after now."""

        def number() -> int:
            last = self.cluster.get(f"/jobs/{self.id}/checkpoints")["latest"]["completed"]
            return int(last["id"]) if last else 0

        first = number()
        self.cluster.until(lambda: number() >= first + more, f"{more} checkpoints")

    def busy(self) -> int:
        """A task manager that runs tasks of the count, by its process."""
        vertices = self.cluster.get(f"/jobs/{self.id}")["vertices"]
        count = next(v for v in vertices if "count" in v["name"])["id"]
        tasks = self.cluster.get(f"/jobs/{self.id}/vertices/{count}")["subtasks"]
        return int(str(tasks[0]["taskmanager-id"]).partition("-")[0])

    def rescale(self, parallelism: int) -> None:
        """Ask for another parallelism of every vertex, while the job runs."""
        self.parallelism = parallelism
        self.cluster.rescale(self.id, parallelism)

    def back(self, at: float, what: str) -> float:
        """Wait until the last of all sinks that were opened since has put something out: when it did."""
        self.cluster.until(lambda: len(self._first_rows(at)) == self.parallelism, f"output of all tasks after {what}")
        return max(self._first_rows(at).values())

    def last_row(self, before: float) -> float:
        """When a sink that was opened before that put something out for the last time."""
        times = [0.0]
        for file in (self.cluster.work / "out").glob("*.txt"):
            if _opened(file) < before and (lines := file.read_text().splitlines()[:-1]):
                times.append(int(lines[-1].split()[0]) / 1000)
        return max(times)

    def _first_rows(self, at: float) -> dict[str, float]:
        """By subtask: when its newest sink, if it was opened since, wrote first."""
        found = {}
        for file in sorted((self.cluster.work / "out").glob("*.txt")):
            words = file.read_text().split(maxsplit=3)
            if _opened(file) >= at and len(words) >= 3:
                found[file.stem.split("-")[1]] = int(words[0]) / 1000
        return found


def _opened(file: Path) -> float:
    return int(file.stem.split("-")[0]) / 1000
