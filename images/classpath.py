"""Gives Spark one jar that names all others, in order.   usage: classpath.py VENV

Java lists `jars/*` in the order of the directory, which differs between two disks, and an archive of classes holds for one
class path only. So the jars move to `lib/`, and `jars/` keeps one whose manifest says what is there. It has the name of
Spark's core, by which programs tell Spark's and Scala's versions.
"""

from __future__ import annotations

import os
import sys
import zipfile
from pathlib import Path


def manifest(jars: list[str]) -> bytes:
    """With lines of at most 72 bytes, as the format asks for."""
    line = ("Class-Path: " + " ".join(f"../lib/{jar}" for jar in jars)).encode()
    lines = [line[:72], *(b" " + line[at : at + 71] for at in range(72, len(line), 71))]
    return b"\r\n".join([b"Manifest-Version: 1.0", *lines, b"", b""])


def main(venv: Path) -> None:
    """Move the jars and write the new jar; all get the time of the build, because the archive of classes remembers it."""
    (home,) = venv.glob("lib/python3*/site-packages/pyspark")
    (home / "jars").rename(home / "lib")
    (home / "jars").mkdir()
    jars = sorted(jar.name for jar in (home / "lib").glob("*.jar"))
    (core,) = (jar for jar in jars if jar.startswith("spark-core_"))
    with zipfile.ZipFile(home / "jars" / core, "w") as jar:
        jar.writestr(zipfile.ZipInfo("META-INF/MANIFEST.MF"), manifest(jars))
    when = int(os.environ["SOURCE_DATE_EPOCH"])
    for path in (home / "jars" / core, *(home / "lib").iterdir()):
        os.utime(path, (when, when))
    print(f"{len(jars)} jars on the class path")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
