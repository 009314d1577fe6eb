"""What goes wrong in one seed: faults at a time, or just before the n-th effect of a kind.

The mix depends on the seed alone. Places are names of effects; a driver's begin with D (DCommit, DJournal, DSink).
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from ferry.contract import messages
from ferry.contract.plans import Placement, Plan, PlanStep
from ferry.protocol import io as shared_io
from ferry.protocol.coordinator import io as coordinator_io
from ferry.protocol.instance import io as instance_io
from tests.sim.data import SOURCE, Graph, Node, size_of
from tests.sim.events import Dice, Weather

INSTANCE_PLACES = ("Apply", "Apply", "Apply", "Apply", "Save", "LogDelta", "LogDelta", "LoadChunk", "BeginSnapshot", "Contribute", "Compute", "SendDelta",
                   "Send", "Drop", "Forget", "ForgetLog")  # fmt: skip
DRIVER_PLACES = ("DCommit", "DCommit", "DCommit", "DCommit", "DPrepare", "DJournal", "DInstall", "DEmit", "DStartIngest", "DSink", "DSparkCommit",
                 "DAsk")  # fmt: skip

STORE_PLACES = ("WriteCheckpoint", "Archive", "Restore", "Save", "Drop", "Apply")
DRIVER_STORE_PLACES = ("DCheckpoint", "DPublish", "DManifest", "DRewind", "DJournal", "DCommit", "DReady")
"""Places of faults in a job with checkpoints."""

STORED = 0.25
"""Share of jobs with durable checkpoints and disasters."""

assert all(hasattr(instance_io, place) or hasattr(shared_io, place) for place in INSTANCE_PLACES), (
    "a place that no fault would ever be at"
)
assert all(
    hasattr(where, place[1:])
    for place in DRIVER_PLACES
    if place not in ("DSink", "DSparkCommit")
    for where in (messages if hasattr(messages, place[1:]) else coordinator_io,)
)

FOR_GOOD = 1 << 40


@dataclass(slots=True)
class Fault:
    """`what` happens to the process that performs the effect, or to a random process; `also` has further faults."""

    what: str
    """crash | lose | rollback (files of an older day) | worker, loseworker, backup (these of all instances of a worker) | full (no room on its disk) | slow (computes
    longer than any deadline) | freeze (stands still) | driver | zombie | partition | suspect | journal | forget (with a driver: Spark's log loses its end) |
    cut (partition of two instances) | apart (one that never heals) | twin (a second process of its name starts, with nothing)"""
    place: str = ""
    count: int = 0
    time: int = 0
    length: int = 50
    also: list[str] = field(default_factory=list)


@dataclass(slots=True)
class Scenario:
    """All random choices of a seed that are made before it starts."""

    graph: Graph
    vnodes: int
    workers: int
    spare: int
    per_worker: int
    """Instances of a worker: they die together, and no group has two of them."""
    replicas: int
    epochs: int
    keys: int
    splits: int
    varied: bool
    weather: Weather
    faults: list[Fault]
    desired: list[int]
    """Times at which another placement is desired."""
    batch: int
    attempt_ms: int
    fenced_sink: bool
    """Whether the sink itself refuses lower generations."""
    pulses: bool
    """Whether instances send heartbeats: they matter only if an instance stands still or computes for long."""
    disasters: list[tuple[str, int]]
    """everything (is lost) | collecting (the same, while files are removed) | copies (of one virtual node: all) | suspend (the job, and then everything is lost) | file (of the store), and
    when. A job without any has no checkpoints."""
    checkpoint_ms: int
    keep: int
    continuous: bool
    """Whether long-running tasks get assigned shares; otherwise each ingest run is a Spark job."""
    losing: bool
    """Whether the last copy may be lost (the job may then stop with `unavailable`)."""
    deploys: tuple[tuple[int, Graph], ...] = ()
    """When another program is deployed, and its operators."""


KINDS = 11


def draw(seed: int) -> Scenario:
    """The scenario of a seed; its class (seed % KINDS) says which kinds of faults are frequent."""
    rnd = Dice(f"scenario/{seed}")
    kind = seed % KINDS
    operators = rnd.choice((1, 1, 1, 1, 1, 2, 2, 3))
    workers = rnd.choice((2, 2, 2, 2, 3, 3, 4))
    spare = rnd.choice((0, 1, 1)) if kind in (0, 5, 7, 8) else rnd.choice((0, 0, 1))
    weather = Weather()
    if kind in (4, 5):
        weather.slow = rnd.choice((0.02, 0.1, 0.3))
    if rnd.random() < 0.06:
        weather.drop, weather.duplicate = rnd.choice(((0.01, 0.05), (0.03, 0.0), (0.0, 0.2), (0.03, 0.2)))
    kinds = {
        0: ["suspect", "crash"],
        1: ["crash", "worker", "lose", "rollback", "backup", "loseworker"],
        2: ["driver", "driver", "zombie", "driver+forget"],
        3: ["zombie", "zombie", "partition", "suspect", "twin", "twin", "twin+driver"],
        4: ["partition", "cut", "suspect", "journal"],
        5: ["crash", "lose", "twin", "driver", "zombie", "partition", "cut", "suspect", "journal"],
        6: [
            "driver+crash",
            "crash+driver",
            "zombie+crash",
            "driver+lose",
            "zombie+partition",
            "driver+worker",
            "crash",
        ],
        7: [
            "crash",
            "lose",
            "rollback",
            "driver",
            "zombie",
            "suspect",
            "zombie+journal",
            "crash+suspect",
            "driver+backup",
        ],
        9: ["apart", "apart", "apart", "apart+driver", "crash", "suspect"],
        10: ["slow", "slow", "freeze", "freeze", "freeze+driver", "crash"],
        8: ["full", "full", "full", "full+driver", "crash", "suspect"],
    }[kind]
    faults = [
        fault(rnd, rnd.choice(kinds))
        for _ in range(rnd.choice((0, 1, 2, 3, 4)) if kind == 0 else rnd.choice((1, 2, 2, 3, 3, 4)))
    ]
    store = Dice(f"store/{seed}")
    disasters = []
    if store.random() < STORED:
        whats = ("everything", "everything", "collecting", "copies", "copies", "suspend")
        disasters = [(store.choice(whats), store.randint(60, 500)) for _ in range(store.choice((1, 1, 2, 3)))]
        for fault_ in faults:
            if fault_.place and store.random() < 0.5:
                fault_.place = store.choice(DRIVER_STORE_PLACES if fault_.place[0] == "D" else STORE_PLACES)
                fault_.count = store.randint(1, 6)
            elif not fault_.place and store.random() < 0.5:
                fault_.time = store.randint(60, 600)
        if store.random() < 0.1:
            disasters.append(("file", store.randint(60, 500)))
    first = graph(seed, operators)
    deploys = programs(seed, first)
    moves = rnd.randint(1, 5) if kind in (0, 5, 7, 8) else rnd.choice((0, 0, 1, 2))
    return Scenario(
        graph=first,
        deploys=deploys,
        vnodes=rnd.choice((1, 1, 2, 2, 3)),
        workers=workers,
        spare=spare,
        per_worker=2 if rnd.random() < 0.1 else 1,
        replicas=min(workers - 1, rnd.choice((0, 1, 1, 2))),
        epochs=rnd.choice((2, 2, 2, 3, 3, 5))
        + (store.choice((3, 6, 12)) if disasters else 0)
        + 8 * boundaries(seed)
        + 2 * len(deploys),
        keys=rnd.choice((3, 3, 8, 12)),
        splits=rnd.choice((1, 1, 2, 3)),
        varied=rnd.random() < (0.75 if kind in (5, 6) else 0.4),
        weather=weather,
        faults=faults,
        desired=sorted(rnd.randint(1, 300) for _ in range(moves)),
        batch=rnd.choice((1, 2, 1 << 30)),
        attempt_ms=rnd.choice((60, 120, 250)),
        fenced_sink=rnd.random() < 0.5,
        losing=rnd.random() < 0.15,
        disasters=disasters,
        checkpoint_ms=store.choice((15, 40, 90)),
        keep=store.choice((1, 2, 3)),
        pulses=kind == 10,
        continuous=Dice(f"mode/{seed}").random() < 0.5,
    )


def plan(seed: int, number: int, placements: tuple[Placement, ...], batch: int) -> Plan:
    """A random plan to these placements: steps, copies ahead of their switchover, virtual nodes without a step."""
    rnd, windows = Dice(f"plan/{seed}/{number}"), Dice(f"windows/{seed}/{number}")
    at_window: tuple[int, ...] = ()
    if boundaries(seed):
        at_window = tuple(v for v in range(len(placements)) if windows.random() < 0.7)
    if rnd.random() < 0.5:
        return Plan(number, placements, warm=rnd.random() < 0.8, at_window=at_window)
    vnodes = list(range(len(placements)))
    rnd.shuffle(vnodes)
    named = vnodes[: rnd.randint(1, len(vnodes))]
    steps = []
    for i in range(0, len(named), batch):
        part = tuple(named[i : i + batch])
        ahead = rnd.random() < 0.3
        steps += [PlanStep(part, ()), PlanStep((), part)] if ahead else [PlanStep((), part)]
    gap, warm = rnd.choice((0, 0, 0, 1)), rnd.random() < 0.7
    at_epoch = rnd.choice((1, 2)) if rnd.random() < 0.15 else 0
    at_time = rnd.choice((5, 20)) if rnd.random() < 0.1 else None
    return Plan(number, placements, tuple(steps), gap, warm, at_epoch, at_time, at_window=at_window)


def boundaries(seed: int) -> bool:
    """Whether virtual nodes of this seed move at boundaries of windows: windows then end while there is input."""
    return Dice(f"boundaries/{seed}").random() < 0.2


def hurries(seed: int, number: int) -> bool:
    """Whether this plan repeats the plan before it, with snapshots in place of boundaries."""
    return boundaries(seed) and Dice(f"hurry/{seed}/{number}").random() < 0.4


def graph(seed: int, operators: int) -> Graph:
    """Chains, branches, diamonds, sources anywhere, and timers in some operators."""
    rnd = Dice(f"graph/{seed}")
    if operators == 3:
        operators = rnd.choice((3, 4))
    made = [Node((SOURCE,), rnd.random() < 0.3, 0)]
    for operator in range(1, operators):
        there = [SOURCE, *range(operator)]
        inputs = sorted(rnd.sample(there, min(len(there), rnd.choice((1, 1, 2, 2, 3)))))
        made.append(Node(tuple(inputs), rnd.random() < 0.3, operator))
    return tuple(made)


def programs(seed: int, first: Graph) -> tuple[tuple[int, Graph], ...]:
    """For a third of the seeds: up to three programs, each of which changes the graph of the one before it anywhere."""
    rnd = Dice(f"programs/{seed}")
    if rnd.random() > 0.33:
        return ()
    now, known = first, {node.id: node for node in first}
    deploys = []
    for time in sorted(rnd.randint(1, 500) for _ in range(rnd.choice((1, 1, 2, 3)))):
        now = changed(rnd, now, known)
        known.update({node.id: node for node in now})
        deploys.append((time, now))
    return tuple(deploys)


def changed(rnd: Dice, before: Graph, known: dict[int, Node]) -> Graph:
    """A graph with an operator more, an operator less, other inputs of an operator, an altered operator, or an operator beside a copy."""
    inputs = {n.id: [before[i].id if i != SOURCE else SOURCE for i in n.inputs] for n in before}
    timers, order = {i: node.timers for i, node in known.items()}, [node.id for node in before]
    # An operator returns under its last id.
    gone = [i for i in known if i not in order and all(node.before != i for node in known.values())]
    what, origin = (
        rnd.choice(("insert", "insert", "drop", "drop", "return", "rewire")),
        {n.id: n.before for n in before},
    )
    windowed = [node.id for node in before if not node.timers]
    if windowed and rnd.random() < 0.3:
        old = rnd.choice(windowed)
        new = next(i for i in range(max(known) + 1, 100) if size_of(i) == size_of(old))
        timers[new], origin[new], inputs[new] = False, old, inputs[old]
        what = rnd.choice(("alter", "alter", "beside"))
        if what == "alter":
            order[order.index(old)] = new
            inputs = {i: [new if j == old else j for j in mine] for i, mine in inputs.items()}
        else:
            order.insert(order.index(old), new)
    if what in ("alter", "beside"):
        pass
    elif what == "drop" and len(order) > 1:
        lost = order.pop(rnd.randrange(len(order)))
        for i in order:
            if lost in inputs[i]:
                inputs[i] = sorted({SOURCE if j == lost else j for j in inputs[i]})
    elif what == "rewire":
        at = rnd.randrange(len(order))
        inputs[order[at]] = rnd.sample([SOURCE, *order[:at]], rnd.randint(1, min(2, at + 1)))
    else:
        new = rnd.choice(gone) if what == "return" and gone else max(known) + 1
        timers.setdefault(new, rnd.random() < 0.3)
        at = rnd.randint(0, len(order))
        inputs[new] = rnd.sample([SOURCE, *order[:at]], rnd.randint(1, min(2, at + 1)))
        for i in order[at:]:
            if rnd.random() < 0.5:
                inputs[i].append(new)
        order.insert(at, new)
    place = {SOURCE: SOURCE} | {i: position for position, i in enumerate(order)}
    return tuple(Node(tuple(sorted(place[j] for j in inputs[i])), timers[i], i, origin.get(i)) for i in order)


def fault(rnd: random.Random, what: str) -> Fault:
    first, _, second = what.partition("+")
    out = Fault(first, time=rnd.randint(5, 250), length=rnd.choice((3, 20, 60, 150, 400)))
    if second:
        out.also = [second]
    if first == "full":
        out.length = rnd.choice((20, 150, 600, FOR_GOOD))
    elif first == "freeze":
        out.length = rnd.choice((100, 500, 1500, 60_000))
    if first in ("crash", "lose", "worker", "loseworker") and rnd.random() < 0.75:
        out.place, out.count = rnd.choice(INSTANCE_PLACES), rnd.randint(1, 20)
    elif first in ("driver", "zombie") and rnd.random() < 0.75:
        out.place, out.count = rnd.choice(DRIVER_PLACES), rnd.randint(1, 10)
    elif first in ("partition", "suspect", "cut", "journal") and rnd.random() < 0.5:
        out.place, out.count = rnd.choice(INSTANCE_PLACES + DRIVER_PLACES), rnd.randint(1, 15)
    return out
