"""The list of all software in an image, as CycloneDX JSON: `python3 images/sbom.py ROOT NAME` reads a root directory.

Debian's packages from dpkg's status, Python distributions from their metadata, jars from their names and Maven properties,
modules of Go from a program at the root; nothing is looked up. Equal images have equal lists. Standard library only:
images/build runs it.
"""

from __future__ import annotations

import email.parser
import hashlib
import json
import re
import sys
import uuid
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

Component = dict[str, Any]

JAR = re.compile(r"(?P<name>.+?)-(?P<version>\d[^/]*)")
"""artifact-1.2.3"""

GO_MARK, GO_HEADER, GO_GUARD = b"\xff Go buildinf:", 32, 16
"""In a program of Go: the mark, the bytes from there to the first text, and the signs around the list of modules."""


def components(root: Path) -> list[Component]:
    """All software below a root directory, each once, in order."""
    found = {each["bom-ref"]: each for each in (*_debian(root), *_python(root), *_jars(root), *_go(root))}
    return [found[key] for key in sorted(found)]


def document(root: Path, name: str) -> dict[str, Any]:
    """The CycloneDX document of an image."""
    parts = components(root)
    digest = hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "serialNumber": f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, f'{name} {digest}')}",
        "version": 1,
        "metadata": {"component": {"type": "container", "bom-ref": name, "name": name}},
        "components": parts,
        "dependencies": [{"ref": name, "dependsOn": [part["bom-ref"] for part in parts]}],
    }


def _component(name: str, version: str, purl: str, **more: Any) -> Component:
    return {"type": "library", "bom-ref": purl, "name": name, "version": version, "purl": purl, **more}


def _debian(root: Path) -> Iterator[Component]:
    status = root / "var/lib/dpkg/status"
    for text in status.read_text("utf-8").split("\n\n") if status.exists() else ():
        fields = email.parser.HeaderParser().parsestr(text)
        if " installed" in fields.get("Status", ""):
            name, version, arch = fields["Package"], fields["Version"], fields["Architecture"]
            yield _component(name, version, f"pkg:deb/debian/{quote(name)}@{quote(version)}?arch={arch}")


def _python(root: Path) -> Iterator[Component]:
    for pattern in ("**/*.dist-info/METADATA", "**/*.egg-info/PKG-INFO", "**/*.egg-info"):
        for file in sorted(root.glob(pattern)):
            if not file.is_file():
                continue
            fields = email.parser.HeaderParser().parsestr(file.read_text("utf-8", "replace"))
            name, version = fields.get("Name"), fields.get("Version")
            if name and version:
                canonical = re.sub(r"[-_.]+", "-", name).lower()
                yield _component(name, version, f"pkg:pypi/{canonical}@{quote(version)}")


def _jars(root: Path) -> Iterator[Component]:
    for file in sorted(root.glob("**/*.jar")):
        if file.is_symlink() or not file.is_file():
            continue
        match = JAR.fullmatch(file.stem)
        name, version = (match["name"], match["version"]) if match else (file.stem, "0")
        group = _group(file, name)
        purl = (
            f"pkg:maven/{quote(group, safe='')}/{quote(name)}@{quote(version)}"
            if group
            else f"pkg:generic/{quote(file.name)}"
        )
        digest = hashlib.sha256(file.read_bytes()).hexdigest()
        where = [{"name": "path", "value": str(file.relative_to(root))}]
        yield _component(name, version, purl, hashes=[{"alg": "SHA-256", "content": digest}], properties=where)


def _group(file: Path, artifact: str) -> str:
    """The group of Maven by the properties in a jar; '' for a jar without them."""
    try:
        with zipfile.ZipFile(file) as jar:
            names = [entry for entry in jar.namelist() if entry.endswith(f"/{artifact}/pom.properties")]
            return names[0].split("/")[2] if len(names) == 1 else ""
    except zipfile.BadZipFile:
        return ""


def _go(root: Path) -> Iterator[Component]:
    """What the linker of Go writes into a program: its own version, and a line for each module."""
    for file in sorted(root.iterdir()):
        data = file.read_bytes() if file.is_file() and not file.is_symlink() else b""
        at = data.find(GO_MARK)
        if at < 0:
            continue
        version, at = _go_text(data, at + GO_HEADER)
        modules, _ = _go_text(data, at)
        yield _component("go", version.removeprefix("go"), f"pkg:golang/stdlib@{version.removeprefix('go')}")
        for line in modules[GO_GUARD:-GO_GUARD].splitlines():
            kind, *words = line.split("\t")
            if kind == "dep":
                yield _component(words[0], words[1], f"pkg:golang/{words[0]}@{quote(words[1])}")


def _go_text(data: bytes, at: int) -> tuple[str, int]:
    """A text with its length before it, seven bits a byte; and where it ends."""
    length = shift = 0
    while True:
        byte, at, shift = data[at], at + 1, shift + 7
        length |= (byte & 127) << (shift - 7)
        if byte < 128:
            return data[at : at + length].decode("utf-8", "replace"), at + length


def main(arguments: list[str]) -> int:
    """Print the list of a root directory."""
    root, name = arguments
    json.dump(document(Path(root), name), sys.stdout, indent=1)
    sys.stdout.write("\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
