"""Text of others in a log makes up no record and no escape."""

from __future__ import annotations

import logging
import subprocess
import sys

from ferry.contract.last_words import last_words
from ferry.system.logs import RecordFormatter

HOSTILE = "db \x1b[2J down\n2026-11-27 00:00:00,1 s driver INFO epoch 99 done"


def test_a_record_is_one_line_and_a_traceback_stands_further_in() -> None:
    try:
        raise RuntimeError(HOSTILE)
    except RuntimeError:
        info = sys.exc_info()
    record = logging.LogRecord("x", logging.ERROR, "x.py", 1, "sink: %s", (HOSTILE,), info)
    lines = RecordFormatter("%(asctime)s s driver %(levelname)s %(message)s").format(record).splitlines()
    assert "\x1b" not in "".join(lines) and lines[0].endswith(
        r"sink: db \x1b[2J down\n2026-11-27 00:00:00,1 s driver INFO epoch 99 done"
    )
    assert len(lines) > 3 and all(line.startswith("  ") for line in lines[1:])
    assert last_words(lines) == r"RuntimeError: db \x1b[2J down"


def test_code_that_closes_standard_output_and_error_takes_no_words_along() -> None:
    program = (
        "import logging, sys; from ferry.system import logs; logs.begin('%(message)s')\n"
        "for one in (sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__): one.close()\n"
        "print('out'); print('\\udc80', file=sys.stderr); logging.info('logged'); sys.stdout.flush()\n"
    )
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "out\n", "\\udc80\nlogged\n")
