"""Run many seeds, or look for the damage that a removed rule does.

    python -m tests.sim.run --seeds 2000 --from 0      all rules on; the first failure ends the run
    python -m tests.sim.run --seeds 2000 --moving      the same, with a first seed from the commit
    python -m tests.sim.run --seed S -v                one seed, with all its events
    python -m tests.sim.run --rules                    every rule removed in turn
    python -m tests.sim.run --rule NAME[+NAME]         one rule, or rules that cover each other

Exit code: 0 fine, 1 correctness, 2 liveness, 3 a crash of the code.
"""

from __future__ import annotations

import argparse
import gc
import multiprocessing
import sys
import time
import traceback
from collections.abc import Sequence
from dataclasses import fields

from ferry.contract.errors import Bug
from ferry.protocol.rules import Rules
from ferry.protocol.story import short
from tests import moving
from tests.sim.checks import Livelock, Violation
from tests.sim.world import World

TOGETHER: dict[tuple[str, ...], str] = {
    ("fence_read", "gone_is_error"): "a driver that is fenced reads rows that are gone: either rule refuses it",
    ("low_attempt", "logs_kept"): "a late delta of an abandoned attempt does harm only if it pushes out a newer one",
}
"""Rules that cover each other: nothing breaks until both are gone, and why."""

MODELLED = (
    "compares_offsets", "keeps_tombs", "scans_whole", "collects_pinned_last", "looks_after_pinning", "rewinds",
    "takes_owed", "waits_out", "derives_chunks", "derives_late_deltas", "sends_altered_first",
    "drops_taken_back",
)  # fmt: skip
"""Guards of the driver's process and of the store, which are simulated here: not rules of the protocol, but removed alike."""


RARE = {"derives_late_deltas": 184_403, "drops_taken_back": 5_600_141_852}
"""Seeds at which to begin the search for rules whose removal does harm in very few worlds."""

RARE_MAX = 100
"""Seeds from such a seed on, also beyond the range of the search."""


def one(seed: int, off: tuple[str, ...] = (), verbose: bool = False) -> tuple[int, int, str, str]:
    """(seed, exit code, what, story) of one seed with some rules removed."""
    rules = Rules(**{name: False for name in off if name not in MODELLED})
    world = World(seed, rules, verbose, off)
    try:
        return seed, 0, world.run(), ""
    except Violation as e:
        return seed, 1, f"damage: {e}", tell(world)
    except Bug as e:
        return seed, 1, f"bug: {e}", tell(world)
    except Livelock as e:
        return seed, 2, f"livelock: {e}", tell(world)
    except Exception:
        return seed, 3, traceback.format_exc(), tell(world)


def tell(world: World) -> str:
    return "\n".join(f"{time:6} {who:9} {short(what)}" for time, who, what in world.story)


def _begin() -> None:
    """Objects from before the first seed stay; each seed leaves one world, which is collected from time to time."""
    gc.collect()
    gc.freeze()
    gc.disable()


def _job(args: tuple[int, tuple[str, ...]]) -> tuple[int, int, str, str]:
    if args[0] % 16 == 0:
        gc.collect()
    return one(*args)


def search(
    seeds: Sequence[int], off: tuple[str, ...], processes: int, keep_on: bool = False
) -> list[tuple[int, int, str, str]]:
    """Failures among these seeds: the first, or all of them."""
    found = []
    with multiprocessing.Pool(processes, _begin) as pool:
        for result in pool.imap(_job, ((s, off) for s in seeds), chunksize=10):
            if result[1]:
                found.append(result)
                if not keep_on:
                    break
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=2000)
    parser.add_argument("--from", type=int, default=0, dest="first")
    parser.add_argument("--moving", action="store_true", help="take the first seed from the commit")
    parser.add_argument("--seed", type=int)
    parser.add_argument("--rule", default="")
    parser.add_argument("--rules", action="store_true")
    parser.add_argument("--keep-on", action="store_true", help="count all failures instead of ending at the first")
    parser.add_argument("-j", type=int, default=2, help="processes")
    parser.add_argument("-v", action="store_true")
    args = parser.parse_args()
    off = tuple(args.rule.split("+")) if args.rule else ()
    if args.seed is not None:
        return report([one(args.seed, off, args.v)], off)
    first = moving.first_seed() if args.moving else args.first
    seeds = range(first, first + args.seeds)
    if args.rules:
        return each_rule(seeds, args.j)
    print(f"seeds {seeds.start} to {seeds.stop - 1}", flush=True)
    began = time.monotonic()
    found = search(seeds, off, args.j, args.keep_on)
    if args.keep_on:
        for seed, code, what, _ in found:
            print(f"SEED {seed} code {code} {what.strip().splitlines()[-1][:300]}")
    print(f"{len(seeds)} seeds, {len(found)} failures, {time.monotonic() - began:.1f} s")
    return report(found[:1], off)


def each_rule(seeds: range, processes: int) -> int:
    paired = {name for group in TOGETHER for name in group}
    groups = [(f.name,) for f in fields(Rules) if f.name not in paired] + list(TOGETHER)
    groups += [(name,) for name in MODELLED]
    missing = 0
    for off in groups:
        began = time.monotonic()
        begin = RARE.get(off[0], seeds.start)
        after, before = range(begin, max(seeds.stop, begin + RARE_MAX)), range(seeds.start, min(begin, seeds.stop))
        found = search((*after, *before), off, processes)
        took = time.monotonic() - began
        if found:
            print(
                f"{'+'.join(off):34} SEED {found[0][0]:5} {took:5.1f} s  {found[0][2].strip().splitlines()[-1][:150]}",
                flush=True,
            )
        else:
            missing += 1
            print(f"{'+'.join(off):34} NOT FOUND in {len(seeds)} seeds {took:5.1f} s", flush=True)
    return 1 if missing else 0


def report(found: list[tuple[int, int, str, str]], off: tuple[str, ...]) -> int:
    for seed, code, what, story in found:
        if code:
            rule = f" --rule {'+'.join(off)}" if off else ""
            print(f"SEED {seed}\nreplay: python -m tests.sim.run --seed {seed}{rule} -v\n{story}\nSEED {seed}: {what}")
        else:
            print(f"SEED {seed}: {what}")
    return max((code for _, code, _, _ in found), default=0)


if __name__ == "__main__":
    sys.exit(main())
