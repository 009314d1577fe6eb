"""Jobs whose run has a key that is no longer there. They are left alone: another key would restart their processes. Pure.

The seal of the last good spec in `status.memory` says whether the key of a number is the one with which the run began.
"""

from __future__ import annotations

from ferry_operator.kube.api import names
from ferry_operator.kube.api.keys import entry_of
from ferry_operator.kube.manifests.release import Installation, seal
from ferry_operator.kube.observe.effective_spec import EffectiveSpec, is_sealed
from ferry_operator.kube.observe.facts import Problem
from ferry_operator.kube.observe.seen import Seen


def left_alone(seen: Seen, release: Installation) -> EffectiveSpec | None:
    """No spec is in force without the key of the run; None: the key is there, or a finished job no longer needs it."""
    memory, keyed = seen.memory, release.of_run(seen.memory.key)
    if keyed is not None and (memory.good is None or is_sealed(memory.good, seen.uid, keyed)):
        return None
    if keyed is not None and seen.before.phase == "Finished":
        return None
    shown = seal(release, "the newest key")
    text = (
        f"the key of this run is gone: {_what(release, memory.key, keyed is None)}. Nothing of the job is changed. Put the "
        f"old value back from a backup. Without a backup, `kubectl -n {release.namespace} annotate --overwrite "
        f"sj/{seen.name} {names.ACCEPT_KEY}={shown}` ends this run without another checkpoint; the next run has the newest "
        "key and begins with the latest checkpoint"
    )
    began_from = (seen.job.get("spec") or {}).get("restoreFrom") if memory.good is not None else memory.before
    return EffectiveSpec(
        None,
        newest=False,
        good=False,
        problem=Problem("KeyMissing" if keyed is None else "KeyReplaced", text),
        began_from=began_from,
        ends_run=seen.annotations.get(names.ACCEPT_KEY) == shown,
    )


def _what(release: Installation, number: int, missing: bool) -> str:
    if release.key_secret is None:
        return "the password of Redis, or its URL, is the key (FERRY_KEY_SECRET is not set), and is another one now"
    where = f"the Secret {release.key_secret} in the namespace {release.home.partition('/')[0] or release.namespace}"
    lacks = "is not there" if missing else "has another value, as when the Secret was deleted and created again"
    return f"the entry `{entry_of(number)}` of {where} {lacks}"
