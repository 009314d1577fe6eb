"""On-the-fly reconfiguration (Bartnik et al., BTW 2019): operators are introduced, replaced and migrated."""

from __future__ import annotations

from collections.abc import Callable

from bench.parts.papers.rows import Answer, Row, runs
from bench.shared.results import Results

FERRY, FLINK = "Ferry", "Flink, tuned"
SYSTEMS = (FERRY, "Ferry, restart", FLINK, "Spark")

UNLIKE = (
    "Flink, too, is stopped with a savepoint while its cluster stays up, and it loses no record; the paper's Flink of 2018 "
    "loses records that are under way. 2 workers in place of 8 machines with up to 80 instances of each operator"
)


def changed(query: str, act: str, *, compared: bool = False) -> Callable[[Results], Answer]:
    """Longest extra silence, and the median time from the request to the first output; compared: with Flink's."""

    def answer(results: Results) -> Answer:
        words, took = list[str](), dict[str, float]()
        for name in SYSTEMS:
            case = {"system": name, "query": query, "act": act}
            extra, force = runs(results, *({**case, "metric": metric} for metric in ("extra silence", "in force")))
            took[name] = force.median
            words.append(f"{name} {max(extra.values) * 1000:,.0f} ms and {force.median:.1f} s")
        ratio = took[FLINK] / took[FERRY] if compared else None
        return Answer(f"longest extra silence, and time to the new program: {'; '.join(words)}", ratio)

    return answer


def command(query: str, act: str) -> tuple[str, ...]:
    """Arguments of `reprogram.py` for one act."""
    systems = ("ferry", "ferry-restart", "flink", "spark")
    return ("reprogram", "--directory", "/dev/shm", "--queries", query, "--kinds", act, "--systems", *systems)


ROWS = (
    Row(
        "bartnik-3",
        "Bartnik, figures 3 and 4 (migration, SMQ)",
        "How long does the output stop when operators with small state migrate, beside a savepoint and a restart?",
        "migration 7.1 s, latency up to 3.5 s; savepoint 7.5 s, latency up to 4.5 s",
        "",
        f"{UNLIKE}. Ferry moves half of the virtual nodes of one worker",
        command("smq", "migrate"),
        changed("smq", "migrate"),
    ),
    Row(
        "bartnik-5",
        "Bartnik, figures 5 and 6, table 1 (migration, NBQ8)",
        "Figure 3, with large state: how long until the operators are at their new place?",
        "13.5 GB: savepoint 191 s, migration 2.3 times less",
        "2.3 (savepoint to migration)",
        f"1 GB of state. {UNLIKE}. Ferry has a replica at the target",
        command("nbq8", "migrate"),
        changed("nbq8", "migrate", compared=True),
    ),
    Row(
        "bartnik-7",
        "Bartnik, figure 7 (introduction, SMQ)",
        "How long does the output stop when a filter is introduced?",
        "less than 10 s to the new operators, 0.55 s of it to start them; the throughput is unaffected",
        "",
        f"{UNLIKE}. The paper has no rival; every other act takes the filter out",
        command("smq", "introduce"),
        changed("smq", "introduce"),
    ),
    Row(
        "bartnik-8",
        "Bartnik, figure 8 (replacement, SMQ)",
        "How long does the output stop when the function of a filter is replaced?",
        "a bit more than 8 s to the new function; the throughput is unaffected",
        "",
        f"{UNLIKE}. The paper has no rival",
        command("smq", "replace"),
        changed("smq", "replace"),
    ),
)
