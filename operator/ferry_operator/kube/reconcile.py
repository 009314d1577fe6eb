"""One reconcile of one job: observe, decide, write the intended steps into the status, act.

Composition only: the pure files of this room hold the rules. A reconcile may end at any point, and this process or another
one may repeat it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace

from ferry.contract.backoff import back_off
from ferry.contract.errors import Fault
from ferry.contract.status import Status
from ferry_operator.control import decide as d
from ferry_operator.control.driver_client import BadAnswer, DriverClient, DriverRefuses, PlacementRefused
from ferry_operator.control.observed import Submitted
from ferry_operator.kube.api import names
from ferry_operator.kube.api.names import Doc, JobKey
from ferry_operator.kube.api.port import CONFLICT, EVENTS, FORBIDDEN, JOBS, NOT_FOUND, PODS, Api, ApiError, tolerate
from ferry_operator.kube.api.redis import Redis
from ferry_operator.kube.cluster import KubeCluster, check_kept, driver_url
from ferry_operator.kube.manifests.release import Installation, redis_address, redis_password, run_key
from ferry_operator.kube.metrics import JobSample, Metrics
from ferry_operator.kube.observe import effective_spec
from ferry_operator.kube.observe.definition import Definition
from ferry_operator.kube.observe.effective_spec import EffectiveSpec
from ferry_operator.kube.observe.facts import OVERDUE_SECONDS, Problem
from ferry_operator.kube.observe.lost_key import left_alone
from ferry_operator.kube.observe.pace import CALM_SECONDS, after_steps, calm_seconds, when_idle
from ferry_operator.kube.observe.program import wanted
from ferry_operator.kube.observe.seen import Seen
from ferry_operator.kube.observe.suspension import asked, has_suspended
from ferry_operator.kube.observe.timers import AbsenceTimers
from ferry_operator.kube.observe.turns import Turn
from ferry_operator.kube.observe.view import REDIS_REFUSES, REDIS_WITHDRAWN, JobView, look
from ferry_operator.kube.plan import plan
from ferry_operator.kube.program_text import ProgramText
from ferry_operator.kube.report import events
from ferry_operator.kube.report.events import EventAllowance
from ferry_operator.kube.report.status import StatusReport, replacing, report
from ferry_operator.kube.steps import Step, WriteSettings, describe
from ferry_operator.kube.store import Store, changed
from ferry_operator.kube.turns import Turns

log = logging.getLogger("ferry.operator")

FRESH_SECONDS = 5.0
"""While a driver does not answer, its last answer stays valid for this time."""

ASIDE_SECONDS, ASIDE_SECONDS_MAX = 1.0, 10.0
"""Back-off before the next request to a driver that has let a reconcile time out; doubles each time."""

EVENT_SECONDS = 10.0
"""Between two writes of the same event."""

EVENTS_MAX = 256
"""Events of a job that the cache holds."""


@dataclass(frozen=True, slots=True)
class DriverFailure:
    """A driver with truncated answers, or without answers."""

    pod: str
    """uid of its pod"""
    problem: Problem
    times: int
    """failed requests in a row"""
    until: float
    """time of the next request"""


@dataclass(slots=True)
class JobCache:
    """Clocks and caches of a job between two reconciles. A new operator begins without them."""

    uid: str
    turn: Turn
    """defaults in force, and the place in a roll"""
    run: str = ""
    """name of the last observed run"""
    timers: AbsenceTimers = field(default_factory=AbsenceTimers)
    errors: tuple[Problem, ...] = ()
    """errors of the last reconcile"""
    answer: tuple[str, Status, Submitted | None, float] | None = None
    """(uid of the driver's pod, its last status, the placement that it accepted last, time of the answer)"""
    failure: DriverFailure | None = None
    """the failure of the last request to the driver"""
    counted_at: float = 0.0
    """time of the last write of the status"""
    epoch: tuple[str, int] | None = None
    """a run, and its last known epoch: the epoch in the status may be older"""
    spec: tuple[Doc, EffectiveSpec, effective_spec.Revisions | None] | None = None
    """(the object of the StreamJob, its spec in force, the revisions of this spec)"""
    release: Installation | None = None
    """the installation with the key of the run and the defaults in force; None without this key"""
    text: ProgramText = field(default_factory=ProgramText)
    """the text of the program, if a ConfigMap has it"""
    problems: tuple[Problem, ...] = ()
    """problems with a written event"""
    events: dict[str, tuple[float, int]] = field(default_factory=dict)
    """events by name: time of the last write, count"""
    allowance: EventAllowance = field(default_factory=EventAllowance)
    steps: tuple[str, ...] = ()
    """steps of the last reconcile, in words"""
    repeats: int = 0
    """reconciles in a row with the same steps"""


@dataclass(slots=True)
class Reconciler:
    """Reconciles the jobs of one namespace, from any thread, one at a time for each job."""

    api: Api
    store: Store
    release: Installation
    driver_client: DriverClient
    metrics: Metrics
    token: int
    clock: Callable[[], float] = time.time
    redis: Redis | None = None
    """None: the reconciles ask Redis themselves, and no run has a user"""
    definition: Definition = field(default_factory=Definition)
    turns: Turns | None = None
    """None: of the jobs in the store"""
    _caches: dict[str, JobCache] = field(default_factory=dict)
    _redis: Redis = field(init=False)
    _turns: Turns = field(init=False)

    def __post_init__(self) -> None:
        self._redis = self.redis or Redis(redis_address(self.release))
        self._turns = self.turns or Turns(self.store.documents, self.release.roll_jobs, self.release.roll_seconds)

    def reconcile(self, name: str) -> float | None:
        """Reconcile once; returns seconds until the next time, None: at the next event. Raises Fault when it fails."""
        job = self.store.job(name)
        cache = self._caches.get(name)
        if cache is not None and (job is None or job["metadata"]["uid"] != cache.uid):
            self.metrics.jobs.forget(self._key(name))
            if not self._forget(name, cache.run):
                return CALM_SECONDS
            cache = self._caches.pop(name) and None
        if job is None:
            return CALM_SECONDS if self._delete_orphans(name) else None
        if cache is None:
            cache = self._caches.setdefault(name, JobCache(job["metadata"]["uid"], Turn(self.release)))
        view = self._look(job, cache)
        cache.run = view.seen.run
        steps = plan(view, self.token, cache.turn.note)
        written = report(view, steps, self.token, cache.turn.release.image)
        self._write(view, written, cache)
        self.metrics.jobs.seen(self._key(name), _sample(view, written), written.handover_seconds)
        errors = self._act(view, steps, cache)
        cache.errors = tuple(_problem(error) for error in errors)
        for error in errors:
            if isinstance(error, ApiError) and error.is_transient:
                raise error
        if changed(job, self.store.job(name) or job):
            return (
                0.0  # changed during this reconcile; the store may have the change from our own patch, before the watch
            )
        cache.steps, before = tuple(describe(step) for step in steps), cache.steps
        cache.repeats = cache.repeats + 1 if steps and cache.steps == before else 0
        return (
            CALM_SECONDS
            if errors
            else after_steps(cache.repeats)
            if steps
            else when_idle(view, calm_seconds(self.metrics.jobs.count()))
        )

    def _key(self, name: str) -> JobKey:
        return JobKey(self.release.namespace, name)

    # ---- observe
    def _look(self, job: Doc, cache: JobCache) -> JobView:
        name, uid, now = job["metadata"]["name"], cache.uid, self.clock()
        # Pods of a deleted job of the same name may still exist: they have another owner.
        pods = tuple(pod for pod in self.store.pods(name) if pod.owner == uid)
        budget, newest = self.store.protected(name, uid), self.release.newest_key
        seen = Seen(job, pods, self.store.nodes, budget, None, None, now, cache.errors, newest_key=newest)
        if (without := left_alone(seen, self.release)) is not None:
            cache.spec = cache.release = None
        keyed = None if without is not None else self.release.of_run(seen.memory.key)
        lacking = self.definition.missing
        cache.turn = Turn(self.release) if keyed is None else self._turns.of(job, pods, keyed, now, lacking)
        effective, revisions = (without, None) if without is not None else self._spec(seen, cache)
        if effective.job is not None:
            cache.text.read(self.api, effective.job.spec.pipeline.config_map, now, self.metrics.jobs.count())
            problem = () if cache.text.problem is None else (cache.text.problem,)
            program = wanted(effective.job.spec, cache.text.text)
            seen = replace(seen, program=program, problems=(*seen.problems, *problem))
        heard = cache.epoch[1] if cache.epoch is not None and cache.epoch[0] == seen.run else None
        place = (cache.turn.reason, cache.turn.message)
        seen = replace(seen, heard_epoch=heard, rolled_out=place, definition=self.definition.problem)
        status, submitted = self._ask_driver(driver_url(seen, effective.job), seen, cache)
        failures = () if cache.failure is None else (cache.failure.problem,)
        seen = replace(seen, status=status, submitted=submitted, problems=(*seen.problems, *failures))
        rests = (
            seen.memory.over
            or has_suspended(seen.driver)
            or (asked(job) and not pods)
            or seen.before.phase == "Finished"
        )
        silent = status is None and not failures and not seen.deleting and not rests
        seen = replace(seen, problems=(*seen.problems, *self._ask_redis(seen, silent, keyed)))
        if seen.counted is not None:
            cache.epoch = (seen.run, seen.counted.epoch)
        return look(seen, effective, revisions, cache.timers)

    def _spec(self, seen: Seen, cache: JobCache) -> tuple[EffectiveSpec, effective_spec.Revisions | None]:
        """The spec in force with its revisions; read again only for a changed object, another key or other defaults."""
        known, release = cache.spec, cache.turn.release
        if known is None or not effective_spec.reads_same(known[0], seen.job) or cache.release != release:
            known = cache.spec = (seen.job, *effective_spec.read(seen.job, release))
            cache.release = release
        return known[1:]

    def _ask_driver(self, url: str | None, seen: Seen, cache: JobCache) -> tuple[Status | None, Submitted | None]:
        driver, last = seen.driver, cache.failure
        if last is not None and (driver is None or last.pod != driver.uid):
            last = cache.failure = None
        if url is None or driver is None or driver.ended is not None:
            return None, None
        if last is None or seen.now >= last.until:
            secret = run_key(cache.release or self.release, seen.uid)
            try:
                status = self.driver_client.status(url, secret)
                if status is not None:
                    submitted = _still_in_force(cache, driver.uid, status)
                    if submitted is None:
                        submitted = self.driver_client.submitted(url, secret, status.generation)
                    cache.answer = (driver.uid, status, submitted, seen.now)
                cache.failure = None
            except BadAnswer as error:
                times = last.times + 1 if last is not None else 1
                wait = back_off(times, ASIDE_SECONDS, ASIDE_SECONDS_MAX) if error.late else 0.0
                until = self.clock() + wait
                cache.failure = DriverFailure(driver.uid, Problem("DriverUnheard", str(error)), times, until)
        answer = cache.answer
        if answer is None or answer[0] != driver.uid or seen.now - answer[3] > FRESH_SECONDS:
            return None, None
        return answer[1], answer[2]

    def _ask_redis(self, seen: Seen, silent: bool, release: Installation | None) -> Iterable[Problem]:
        """Keep the user of the run. `silent`: the driver does not answer, and Redis may be the reason."""
        if release is not None:
            clear = any(names.REDIS not in pod.annotations for pod in seen.pods if pod.ended is None)
            self._redis.keep(seen.run, redis_password(release, seen.run, seen.uid), clear)
        if (why := self._redis.without(seen.run)) is not None:
            yield Problem(REDIS_WITHDRAWN, why)
        if silent and (why := self._redis.problem()) is not None:
            yield Problem(REDIS_REFUSES, why)

    # ---- write
    def _write(self, view: JobView, written: StatusReport, cache: JobCache) -> None:
        """Write events, then the status. A status with changes of counters alone is written rarely."""
        patience = written.patience(self.metrics.jobs.count())
        if patience is None or view.seen.now - cache.counted_at < patience:
            return
        news = (*events.changes(written), *events.new_problems(written.problems, cache.problems))
        for notice in cache.allowance.of(news, view.seen.now):
            self._write_event(view, notice, cache)
            if notice.reason == "HandoverFinished" and written.handover_seconds is not None:
                self.metrics.count_handover(written.handover_seconds)
        cache.counted_at, cache.problems = view.seen.now, written.problems
        known = {key: value for key, value in (view.seen.job.get("status") or {}).items() if key != "memory"}
        status = replacing(known, written.status.to_wire())
        if new := "memory" not in (view.seen.job.get("status") or {}):
            status["memory"] = view.seen.memory.to_wire()
        try:
            patched = self.api.patch(JOBS, view.seen.name, {"status": status}, "status")
        except ApiError as error:
            tolerate(error, NOT_FOUND)
            return
        self.store.put(JOBS, patched)
        if new:
            check_kept(patched, view.seen.memory)

    def _write_event(self, view: JobView, notice: events.Notice, cache: JobCache) -> None:
        """Create an event, or raise the count of the same event. A failure is logged, and the reconcile goes on."""
        now = view.seen.now
        document = events.event(view.seen.job, notice, 1, now)
        name = document["metadata"]["name"]
        last, count = cache.events.get(name, (0.0, 0))
        if now - last < EVENT_SECONDS:
            return
        if len(cache.events) >= EVENTS_MAX:
            cache.events.clear()
        log.info("%s: %s: %s", self._key(view.seen.name), notice.reason, notice.message)
        try:
            cache.events[name] = (now, self._count_up(document, count))
        except ApiError as error:
            level = logging.INFO if error.is_transient or self._namespace_terminates(error) else logging.WARNING
            log.log(level, "%s: the event %s was not written: %s", self._key(view.seen.name), notice.reason, error)

    def _count_up(self, document: Doc, count: int) -> int:
        """Write an event with `count` known writes; returns the new count."""
        if count == 0:
            try:
                self.api.create(EVENTS, document)
                return 1
            except ApiError as error:
                tolerate(error, CONFLICT)
                count = 1
        more = {"count": count + 1, "lastTimestamp": document["lastTimestamp"]}
        try:
            self.api.patch(EVENTS, document["metadata"]["name"], more)
            return count + 1
        except ApiError as error:
            tolerate(error, NOT_FOUND)
        self.api.create(EVENTS, document)  # the API server deletes events after an hour
        return 1

    def _namespace_terminates(self, error: ApiError) -> bool:
        """Whether the namespace is being deleted: with the job and the rights of the operator, in any order."""
        if "being terminated" in str(error):
            return True
        if error.status != FORBIDDEN:
            return False
        try:
            self.api.find(JOBS)
        except ApiError:
            return True
        return False

    # ---- act
    def _act(self, view: JobView, steps: Sequence[Step], cache: JobCache) -> list[Fault]:
        """Execute the steps; a later reconcile retries refused steps."""
        release = cache.release or self.release
        cluster = KubeCluster(self.api, self.store, view, release, self.driver_client, self.token, self._redis)
        errors, unwritten = list[Fault](), False
        for step in steps:
            if isinstance(step, d.SubmitDesired):
                _assume_accepted(step, cache)
            elif unwritten and isinstance(step, d.StartDriver | d.StartWorker):
                continue  # a new pod would read outdated settings
            try:
                done = cluster.do(step)
            except (ApiError, DriverRefuses) as error:
                if isinstance(error, ApiError) and error.status == 0:
                    raise
                errors.append(error)
                log.info("%s: %s: %s", self._key(view.seen.name), describe(step), error)
                unwritten |= isinstance(step, WriteSettings)
                continue
            notice = events.step_notice(step)
            if done and notice is not None:
                self._write_event(view, notice, cache)
        return errors

    # ---- deleted jobs
    def _delete_orphans(self, name: str) -> bool:
        """Whether a deleted job still has pods. Pods whose kubelet does not answer are deleted by force."""
        now, pods = self.clock(), self.store.pods(name)
        for pod in pods:
            if pod.deleting is not None and now > pod.deleting + OVERDUE_SECONDS:
                try:
                    self.api.delete(PODS, pod.name, pod.uid, grace=0)
                except ApiError as error:
                    tolerate(error, NOT_FOUND, CONFLICT)
                self.store.remove(PODS, {"metadata": {"name": pod.name, "uid": pod.uid}})
        return bool(pods)

    def _forget(self, name: str, run: str) -> bool:
        """Delete the Redis entries of a deleted job, once no pod of the job can write there; False: not yet."""
        if self._delete_orphans(name) and self.store.job(name) is None:
            return False
        self._redis.forget(run)
        return True


def _still_in_force(cache: JobCache, pod: str, status: Status) -> Submitted | None:
    """The known placement, if this life of the driver still has it: it is long, and is asked for once."""
    if cache.answer is None or cache.answer[0] != pod or cache.answer[1].generation != status.generation:
        return None
    known = cache.answer[2]
    return known if known is not None and known.plan.number == status.desired else None


def _assume_accepted(step: d.SubmitDesired, cache: JobCache) -> None:
    """Assume that the driver follows this placement: a worker that is empty in its last answer may be in use by now."""
    if cache.answer is not None:
        pod, status, _, at = cache.answer
        mine = step.accepted()
        cache.answer = (pod, status, mine, at)


def _problem(error: Fault) -> Problem:
    if isinstance(error, DriverRefuses):
        return Problem("PlacementRefused" if isinstance(error, PlacementRefused) else "DriverRefuses", str(error))
    return Problem("ApiRefused", str(error))


def _sample(view: JobView, written: StatusReport) -> JobSample:
    given_up = view.seen.status.moves.given_up if view.seen.status is not None else 0
    return JobSample(written.status, view.effective.newest, len(view.seen.workers), given_up)
