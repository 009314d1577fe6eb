"""A driver that keeps the contract and does no work: standard library only, so that it starts at once.

Arguments of the pipeline steer it: exit_at {epoch, code} (only in the first life unless `always`), seconds per epoch,
malformed (records an epoch), prints (it has a console sink), since (a sink fails since then), full (no checkpoint is ever complete), deaf (does not obey /stop), mute (answers nothing for 4 s when told to stop, then ends), restless (children in groups of their own).
"""

import hmac
import json
import os
import ssl
import subprocess
import sys
import threading
import time
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

RUN = json.loads(Path(sys.argv[1]).read_text())
HERE = Path(RUN["directory"])
ARGS = RUN["pipeline_args"]


def derived(purpose):
    return hmac.new(RUN["secret"].encode(), f"ferry {purpose}".encode(), "sha256").hexdigest()


def record(kind, **fields):
    line = json.dumps({"kind": kind, "t": time.time(), **fields}) + "\n"
    with open(HERE / "timeline.jsonl", "ab", buffering=0) as file:
        file.write(line.encode())


def alive():
    found = []
    for pid in HERE.glob("workers/*/*/pid"):
        try:
            os.kill(int(pid.read_text()), 0)
            found.append(f"{pid.parent.parent.name}.{pid.parent.name}")
        except (OSError, ValueError):
            pass
    return sorted(found)


def load(name, otherwise):
    file = HERE / f"fake-{name}.json"
    return json.loads(file.read_text()) if file.exists() else otherwise


def save(name, value):
    # In one step: the driver may be killed at any moment.
    (HERE / "fake.new").write_text(json.dumps(value))
    os.replace(HERE / "fake.new", HERE / f"fake-{name}.json")


class State:
    generation = load("generation", 0) + 1
    epoch = load("epoch", -1)
    rows = load("rows", 0)
    groups = load("groups", None)
    desired = (0, None)
    stop = False
    suspend = False
    asked = []
    """checkpoints: (number, name)"""
    checkpoint = load("checkpoint", {"number": None})
    mute = False
    finished = False


def status():
    living = alive()
    want = State.desired[1]
    settled = want is None or all(
        not learners and in_sync == [i for i in w if i in living]
        for (in_sync, learners), w in zip(State.groups or [], want)
    )
    return {
        "job": RUN["job"], "generation": State.generation, "phase": "idle", "epoch": State.epoch,
        "version": [State.generation, 1], "groups": State.groups or [], "settled": settled, "desired": State.desired[0],
        "alive": living, "journal_up": True,
        "progress": {"watermark": 1000, "rows": State.rows},
        "load": {
            "vnodes": [[100.0, 1000.0]] * RUN["virtual_nodes"], "rows_per_second": 1000.0, "epoch_seconds": 0.02,
        },
        "problems": [{"reason": "SinkFailing", "text": "the database is away", "since": ARGS["since"]}] if "since" in ARGS else [],
        "finished": State.finished, "checkpoint": State.checkpoint if RUN["checkpoint"] else None,
        "notices": [{"reason": "CheckpointDelayed", "text": "no room", "since": time.time()}] if ARGS.get("full") else [],
    }  # fmt: skip


class Handler(BaseHTTPRequestHandler):
    def log_message(self, *args):
        pass

    def answer(self, document):
        body = json.dumps(document).encode()
        self.send_response(200 if self.headers["Authorization"] == f"Bearer {derived('control')}" else 401)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def body(self):
        return json.loads(self.rfile.read(int(self.headers.get("Content-Length") or 0)) or b"{}")

    def do_GET(self):
        if State.mute:
            time.sleep(60)
        self.answer(status())

    def do_PUT(self):
        document = self.body()
        State.desired = (document["number"], document["placements"])
        self.answer({})

    def do_POST(self):
        document = self.body()
        if self.path == "/checkpoint":
            number = (State.checkpoint["number"] or 0) + len(State.asked) + 1
            State.asked.append((number, document["name"]))
            return self.answer({"number": number})
        if self.path == "/suspend":
            State.suspend = True
            return self.answer({})
        if ARGS.get("mute"):
            State.mute = True
            time.sleep(4)
            os._exit(0)
        State.stop = not ARGS.get("deaf")
        self.answer({})


def regroup():
    """One step: what is learned is in sync, what is in sync is switched over, the rest is cleaned."""
    living, changes, before = alive(), [], State.groups
    groups = []
    for v, (in_sync, learners) in enumerate(before):
        kept = [i for i in in_sync if i in living] or in_sync
        want = [i for i in State.desired[1][v] if i in living] if State.desired[1] else kept
        if not want:
            groups.append([kept, []])
            continue
        for i in learners:
            changes.append([v, "in-sync", i])
        now = kept + [i for i in learners if i in living]
        new = [i for i in want if i not in now]
        changes += [[v, "joined", i] for i in new]
        if not new and now != want:
            if now[0] != want[0]:
                changes.append([v, "switched", want[0]])
            changes += [[v, "cleaned", i] for i in now if i not in want]
            now = want
        groups.append([now, new])
    State.groups = groups
    save("groups", groups)
    if changes:
        record("groups", changes=changes)


def checkpoint():
    """At the end of an epoch."""
    if ARGS.get("full"):
        return
    if State.suspend:
        State.asked.append(((State.checkpoint["number"] or 0) + len(State.asked) + 1, None))
    for number, name in State.asked:
        State.checkpoint = {
            "number": number,
            "name": name,
            "epoch": State.epoch,
            "at": time.time(),
            "bytes": 5,
            "total_bytes": 9,
        }
        save("checkpoint", State.checkpoint)
    State.asked = []
    if State.suspend:
        print("suspended: checkpoint", State.checkpoint["number"])
        os._exit(6)


def at(epoch, stage):
    if [epoch, stage] in [list(s) for s in RUN["stops"]]:
        request = urllib.request.Request(
            RUN["supervisor"] + "/stage", json.dumps({"epoch": epoch, "stage": stage}).encode(),
            {"Authorization": f"Bearer {derived('supervisor')}", "Content-Type": "application/json"},
        )  # fmt: skip
        urllib.request.urlopen(request, timeout=30, context=ssl._create_unverified_context()).read()


def main():
    save("generation", State.generation)
    if "refuse" in ARGS:
        print(f"pipeline refused: {ARGS['refuse']}")
        sys.exit(2)
    # Like a virtual machine and its workers: one child in this group, one in a group of its own.
    subprocess.Popen(["sleep", "1000"])
    subprocess.Popen(["sleep", "1000"], process_group=0)
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    wanted = [f"{k}.{i}" for k in range(RUN["workers"]) for i in range(RUN["instances_per_worker"])]
    if State.groups is None:
        State.groups = [[[wanted[v % len(wanted)]], []] for v in range(RUN["virtual_nodes"])]
    document = {"url": f"http://127.0.0.1:{server.server_port}", "pid": os.getpid(), "generation": State.generation}
    (HERE / "driver.new").write_text(json.dumps(document))
    os.replace(HERE / "driver.new", HERE / "driver.json")
    while not alive():
        time.sleep(0.01)
    if ARGS.get("prints"):
        record("output", text="/data/counts")
        record("printed", text='-- epoch 0: 1 rows\n   {"n": 3}')
    record("ready", generation=State.generation, epoch=State.epoch)
    per_epoch, seconds, crash = 100, ARGS.get("seconds", 0.02), ARGS.get("exit_at")
    while not State.stop and (RUN["events"] is None or State.rows < RUN["events"]):
        epoch, begin = State.epoch + 1, time.time()
        for stage in ("begin", "ingest", "prepare", "commit", "emit", "sink"):
            at(epoch, stage)
        if crash is not None and epoch == crash and (State.generation == 1 or ARGS.get("always")):
            print(f"something broke in epoch {epoch}", flush=True)
            os._exit(ARGS.get("code", 1))
        time.sleep(seconds)
        regroup()
        if "since" in ARGS:
            continue
        State.epoch, State.rows = epoch, State.rows + per_epoch
        save("epoch", epoch)
        save("rows", State.rows)
        checkpoint()
        if malformed := ARGS.get("malformed", 0):
            (HERE / "dead-letter" / f"epoch={epoch}").mkdir(parents=True, exist_ok=True)
            (HERE / "dead-letter" / f"epoch={epoch}" / "a.jsonl").write_text("{}\n")
            record("malformed", text="no number in orders/1.json:7")
        record("epoch", epoch=epoch, generation=State.generation, begin=begin, end=time.time(), rows=per_epoch, fired=1,
               late=0, malformed=malformed, stages={"spark": 0.001, "ingest": 0.01}, watermark=1000)  # fmt: skip
    State.finished = not State.stop
    record("finished", rows=State.rows)
    os._exit(0)


main()
