"""Checkpoints of a simulated driver: it requests checkpoints, publishes manifests, removes old files, and restores.

Must never touch the state of an instance, nor continue a restore without a pin on its manifest.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING

from ferry.contract import messages as m
from ferry.protocol import coordinator as core
from tests.sim.spark import Spark
from tests.sim.store import Manifest

if TYPE_CHECKING:
    from tests.sim.driver import Driver


class Checkpoints:
    """Checkpoints and restores of one driver."""

    def __init__(self, driver: Driver) -> None:
        self.driver, self.world = driver, driver.world
        table = self.world.journal or self.world.initial
        self.pin: Manifest | None = self.world.store.pins.get(table.origin) if table.initial else None
        self.origin = table.origin
        self.number = 0

    @property
    def restore(self) -> m.Commit | None:
        return self.pin.commit if self.pin is not None else None

    def rewound(self, event: core.Journaled) -> bool:
        """After the claim, and before the driver asks any instance: cut the sink and Spark's log at the checkpoint."""
        pin, world, driver = self.pin, self.world, self.driver
        if pin is None or event.version.number or not world.rewinds:
            return True
        epoch = pin.commit.commit_id.step.epoch
        world.sink_fence = max(world.sink_fence, driver.generation)
        world.truncate(pin)
        if world.before("DRewind", driver):
            world.kill_driver(driver)
            return False
        driver.spark = world.spark = Spark(world.epochs, world.rnd)
        world.note(driver.name, f"rewound to epoch {epoch}")
        return True

    def begin(self) -> None:
        """Begin to request checkpoints; the recovery is over."""
        if self.pin is not None:
            self.world.store.pins.pop(self.origin, None)
            self.pin = None
        if self.world.stored:
            self.world.after(self.world.rnd.randint(1, self.world.scenario.checkpoint_ms), self.ask)

    def ask(self) -> None:
        world, driver = self.world, self.driver
        if not driver.alive:
            return
        known = [one.number for one in world.store.manifests.values()]
        self.number = max([self.number, *known]) + 1
        driver.take(core.TakeCheckpoint(self.number, world.suspends))
        world.after(world.scenario.checkpoint_ms * (10 if world.net.fair else 1), self.ask)

    def publish(self, effect: core.Publish) -> None:
        """Make the manifest, and schedule its write."""
        world, driver = self.world, self.driver
        commit = m.Commit(effect.commit_id, driver.generation, effect.results, effect.meta)
        name = f"{effect.number}-{driver.generation}"
        chains = {v: names for part in effect.chains for v, names in json.loads(part)}
        epoch, checks = effect.commit_id.step.epoch, world.checks
        if effect.commit_id not in checks.references:
            if driver.generation >= world.sink_fence:
                checks.fail(f"checkpoint {name} is of {effect.commit_id}, which no member has applied")
            return  # An old driver publishes a checkpoint of an old run.
        if checks.emitted_label.get(epoch) != effect.commit_id:
            if driver.generation >= world.sink_fence:
                checks.fail(f"checkpoint {name} is of {effect.commit_id}, the sinks do not have that epoch")
            return
        manifest = Manifest(
            name, effect.number, driver.generation, commit, chains, checks.references[effect.commit_id],
            {e: (x, checks.emitted_in[e]) for e, x in checks.emitted_label.items() if e <= epoch},
            {e: x for e, x in world.sink.items() if e <= epoch}, dict(checks.covered),
            (effect.program,), {n: e for n, e in world.since.items() if n <= effect.program.number},
        )  # fmt: skip
        world.after(world.store.delay(), self.write, manifest)

    def write(self, manifest: Manifest) -> None:
        """Write the manifest; the driver may die before the write, or before the answer."""
        world, driver, store, name = self.world, self.driver, self.world.store, manifest.name
        if not driver.alive and world.rnd.random() < 0.5:
            return
        if store.fails():
            driver.take(core.Published(manifest.number, "the store could not be reached"))
            return
        world.note(driver.name, f"publishes {name} as of {manifest.commit.commit_id}")
        store.verify(manifest)
        store.manifests[name] = manifest
        if world.before("DManifest", driver):
            world.kill_driver(driver)
            return
        if world.suspends and driver is world.driver:
            world.lose_everything()
            return
        driver.take(core.Published(manifest.number))
        if len(store.manifests) > world.scenario.keep:
            world.collecting()
        self.collect(store.collect(world.scenario.keep, lambda: driver.alive or world.rnd.random() < 0.9))

    def collect(self, requests: Iterator[int]) -> None:
        """Send one request after the other; a collection that has begun continues after the death of its driver."""
        for delay in requests:
            self.world.after(delay, self.collect, requests)
            return
