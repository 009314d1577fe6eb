"""Writes archive and manifest by which krew installs `kubectl streamjob`: `python scripts/krew.py DIRECTORY [--url URL]`.

The archive has the wheel of the client, and a launcher that installs the wheel into an environment of its own at the first
call: the client needs libraries for the system's Python, which no archive could hold for every Python.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import subprocess
import sys
import tarfile
import tomllib
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[1]
CLIENT = ROOT / "operator" / "client"

ARCHIVE = "kubectl-streamjob.tar.gz"
MANIFEST = "streamjob.yaml"
PROGRAM = "kubectl-streamjob"

LAUNCHER = """#!/bin/sh
# kubectl streamjob: installs the client beside this file at the first call. PYTHON: the Python to use, 3.11 or newer.
set -eu
here=$(dirname "$(readlink -f "$0")")
if [ ! -f "$here/venv/ready" ]; then
    python=${PYTHON:-python3}
    if ! "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then
        echo "kubectl streamjob needs Python 3.11 or newer: set PYTHON" >&2
        exit 1
    fi
    echo "kubectl streamjob: installing its libraries, once" >&2
    "$python" -m venv --clear "$here/venv"
    "$here/venv/bin/python" -m pip install --quiet --disable-pip-version-check "$here"/*.whl >&2
    touch "$here/venv/ready"
fi
exec "$here/venv/bin/kubectl-streamjob" "$@"
"""


def archive(folder: Path) -> Path:
    """The archive, made from the sources of the client."""
    wheels = folder / "wheels"
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--disable-pip-version-check", "--no-deps"]
    subprocess.run([*command, "--wheel-dir", str(wheels), str(CLIENT)], check=True)
    (wheel,) = wheels.glob("*.whl")
    made = folder / ARCHIVE
    with tarfile.open(made, "w:gz") as out:
        _add(out, PROGRAM, LAUNCHER.encode(), 0o755)
        _add(out, wheel.name, wheel.read_bytes(), 0o644)
        _add(out, "LICENSE", (ROOT / "LICENSE").read_bytes(), 0o644)
    return made


def manifest(made: Path, url: str) -> str:
    """The manifest of the plugin, in the form of krew's index."""
    project = tomllib.loads((CLIENT / "pyproject.toml").read_text("utf-8"))["project"]
    systems = [{"matchExpressions": [{"key": "os", "operator": "In", "values": ["linux", "darwin"]}]}]
    return yaml.safe_dump(
        {
            "apiVersion": "krew.googlecontainertools.github.com/v1alpha2",
            "kind": "Plugin",
            "metadata": {"name": "streamjob"},
            "spec": {
                "version": f"v{project['version']}",
                "shortDescription": "Inspect, scale and change stream jobs of Ferry",
                "description": f"{project['description']}.\n",
                "caveats": "Needs Python 3.11 or newer with venv; its libraries are installed at the first call.\n",
                "platforms": [
                    {
                        "selector": system,
                        "uri": url,
                        "sha256": hashlib.sha256(made.read_bytes()).hexdigest(),
                        "bin": PROGRAM,
                        "files": [{"from": "*", "to": "."}],
                    }
                    for system in systems
                ],
            },
        },
        sort_keys=False,
    )


def _add(out: tarfile.TarFile, name: str, data: bytes, mode: int) -> None:
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode = len(data), mode
    out.addfile(entry, io.BytesIO(data))


def main() -> None:
    """Write both files."""
    p = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    p.add_argument("directory", type=Path)
    p.add_argument("--url", help="where the archive will be; default: the file itself")
    a = p.parse_args()
    a.directory.mkdir(parents=True, exist_ok=True)
    made = archive(a.directory)
    (a.directory / MANIFEST).write_text(manifest(made, a.url or made.resolve().as_uri()))


if __name__ == "__main__":
    main()
