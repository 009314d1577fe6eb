"""`python -m ferry.sidecar RUN_JSON --worker K [--instance I]`: a sidecar's parent, or one of its instances.

It ends with an `ExitCode`.
"""

from __future__ import annotations

import argparse
import faulthandler
import logging
import os
import signal
import sys
import threading

from ferry import environment
from ferry.contract.documents import RunSettings
from ferry.contract.errors import NO_TRANSPORT
from ferry.contract.exit_codes import ExitCode
from ferry.system.parent import die_with_parent


def main() -> int:
    """Parse arguments, run until told to stop."""
    parser = argparse.ArgumentParser(prog="ferry.sidecar")
    parser.add_argument("run_json")
    parser.add_argument("--worker", type=int, required=True)
    parser.add_argument("--instance", type=int)
    parser.add_argument("--life", type=bytes.fromhex, default=b"", help="of an instance, given by its parent")
    parser.add_argument("--parent", type=int, default=os.getppid(), help="of an instance: the number of its parent")
    parser.add_argument("--instances", type=int, default=1)
    args = parser.parse_args()
    settings, surroundings = RunSettings.read(args.run_json), environment.read()
    logging.basicConfig(
        level=logging.INFO,
        stream=sys.stderr,
        format=f"%(asctime)s {settings.run} w{args.worker} %(levelname)s %(message)s",
    )
    sys.setswitchinterval(0.0005)
    faulthandler.register(signal.SIGUSR1)  # `kill -USR1` shows in the log what every thread is doing
    if args.instance is None:
        from ferry.sidecar.parent import Parent

        return Parent(settings, args.run_json, args.worker, args.instances, surroundings).run()
    die_with_parent(args.parent)
    threading.excepthook = end_with_thread
    from ferry.channel.rdma.verbs import DeviceUnusable
    from ferry.sidecar.node import Node

    try:
        node = Node(settings, args.worker, args.instance, args.life, surroundings)
    except DeviceUnusable as error:
        print(f"{NO_TRANSPORT}{error}", file=sys.stderr)
        return ExitCode.NO_TRANSPORT
    return node.run()


def end_with_thread(failed: threading.ExceptHookArgs) -> None:
    """A thread that fails takes its instance along: the parent starts it again, and it comes back to its own files."""
    name = failed.thread.name if failed.thread is not None else "?"
    logging.getLogger("ferry.sidecar").critical("thread %s failed", name, exc_info=failed.exc_value)
    os._exit(ExitCode.THREAD_FAILED)


if __name__ == "__main__":
    code: int = ExitCode.CRASHED
    try:
        code = main()
    except Exception:
        logging.getLogger("ferry.sidecar").critical("ends", exc_info=True)
    finally:
        # Not sys.exit: threads of Flight may keep a process alive whose loop has ended.
        sys.stderr.flush()
        os._exit(code)
