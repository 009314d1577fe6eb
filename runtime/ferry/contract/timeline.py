"""The timeline of a run: one JSON record a line, appended in one write; `t` is seconds since 1970, and `up` of
actions and epochs is the machine's monotonic clock, for the time between them.

Records by `kind`:
`epoch` {epoch, generation, begin, end, rows, fired, late, malformed, stages: {spark, ingest, prepare, commit, emit, sink}
(seconds), watermark}, `groups` {changes: [[vnode, what, instance], ...]}, `lost` {text}, `ready` {generation, epoch},
`checkpoint` {text} (a durable one is complete), `restore` {text} (the job begins again with one), `suspended` {text},
`output` {text} (the directories of sinks), `printed` {text} (rows of a console sink),
`latency` {records, p50, p90, p99, p999, max, counts: [[bucket, records], ...]} (seconds from records' creation to the sinks,
of the epochs since the last such line; buckets of `contract/latency.py`),
`action` {text} (the supervisor did: scale, kill, move, restart), `ended` {process, text} (an instance ended badly, and
why) and, of the run itself, `ended` {outcome, text}, `halt` {text}, `finished` {text}, `degraded` {text}
(a problem begins; once, however often it is retried), `mended` {text}, `malformed` {text} (the first one of a run, and
each record that is set aside because it kills tasks), `warning`
{text} (a condition to fix, though the job goes on), `deploy`, `deployed`, `deploy-refused`, `taken-back` {text} (a program).
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from pathlib import Path
from typing import Any

from ferry.contract import limits

TIMELINE, TIMELINE_BEFORE = "timeline.jsonl", "timeline.1.jsonl"
"""The part that is written, and the one before it."""


def append_record(directory: str | Path, record: dict[str, Any]) -> None:
    """Append one record to the run's timeline, in one write so that processes do not mix their lines.

    A full part becomes the previous part; a lock on it keeps two processes from doing that at once.
    """
    line = (json.dumps(record, separators=(",", ":")) + "\n").encode()
    path = Path(directory) / TIMELINE
    with open(path, "ab", buffering=0) as file:
        file.write(line)
        if file.tell() > limits.TIMELINE_BYTES_MAX:
            fcntl.flock(file, fcntl.LOCK_EX)
            with contextlib.suppress(FileNotFoundError):  # another process has done it
                if path.stat().st_ino == os.fstat(file.fileno()).st_ino:
                    path.rename(path.with_name(TIMELINE_BEFORE))
