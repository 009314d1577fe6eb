#!/usr/bin/env python3
"""Packs a directory as a container image of one layer: mkimage.py NAME:TAG DIRECTORY ARCHIVE [ENTRYPOINT...]

Same input, same bytes: sorted entries, no times, no owners. The standard library only; no registry, no daemon, no root.
"""

from __future__ import annotations

import hashlib
import io
import json
import platform
import sys
import tarfile
from pathlib import Path

OCI = "application/vnd.oci.image."
ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
SEARCH_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def main(name: str, root: Path, archive: Path, entrypoint: list[str]) -> None:
    """Write the archive."""
    layer = packed(root)
    config = {
        "architecture": ARCHITECTURES[platform.machine()],
        "os": "linux",
        "created": "1970-01-01T00:00:00Z",
        "config": {
            "Env": [f"PATH={SEARCH_PATH}"],
            "WorkingDir": "/",
            **({"Entrypoint": entrypoint} if entrypoint else {}),
        },
        "rootfs": {"type": "layers", "diff_ids": [digest(layer)]},
        "history": [{"created": "1970-01-01T00:00:00Z", "created_by": "mkimage"}],
    }
    with tarfile.open(archive, "w") as tar:
        add(tar, "oci-layout", b'{"imageLayoutVersion":"1.0.0"}')
        layers = [add_blob(tar, layer, "layer.v1.tar")]
        manifest = {
            "schemaVersion": 2,
            "mediaType": OCI + "manifest.v1+json",
            "config": add_blob(tar, encoded(config), "config.v1+json"),
            "layers": layers,
        }
        entry = add_blob(tar, encoded(manifest), "manifest.v1+json")
        entry["annotations"] = {
            "io.containerd.image.name": name,
            "org.opencontainers.image.ref.name": name.rsplit(":", 1)[-1],
        }
        add(tar, "index.json", encoded({"schemaVersion": 2, "manifests": [entry]}))


def packed(root: Path) -> bytes:
    """The directory as a tar; directories are walked in sorted order."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for top in sorted(root.iterdir()):
            tar.add(top, arcname=top.name, filter=anonymous)
    return buffer.getvalue()


def anonymous(info: tarfile.TarInfo) -> tarfile.TarInfo:
    """The entry without owner and time."""
    info.uid = info.gid = info.mtime = 0
    info.uname = info.gname = ""
    return info


def digest(data: bytes) -> str:
    """The name of a blob."""
    return "sha256:" + hashlib.sha256(data).hexdigest()


def encoded(document: object) -> bytes:
    """JSON, the same bytes each time."""
    return json.dumps(document, sort_keys=True).encode()


def add_blob(tar: tarfile.TarFile, data: bytes, media: str) -> dict[str, object]:
    """Add a blob; returns its descriptor."""
    add(tar, "blobs/" + digest(data).replace(":", "/"), data)
    return {"mediaType": OCI + media, "digest": digest(data), "size": len(data)}


def add(tar: tarfile.TarFile, path: str, data: bytes) -> None:
    """Add a file."""
    info = tarfile.TarInfo(path)
    info.size = len(data)
    tar.addfile(info, io.BytesIO(data))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]), sys.argv[4:])
