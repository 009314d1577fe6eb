"""ProgramCopy the program of a run into its directory: the pipeline, and the user's modules that it imports.

What is edited later is for the next run. Installed packages are not copied, nor what a program reads otherwise, and modules
that are imported by a name that is computed are not found.
"""

from __future__ import annotations

import ast
import hashlib
import os
import shutil
import sys
import sysconfig
from collections.abc import Iterator
from contextlib import suppress
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path

from ferry.contract.errors import Exhausted, SpecRefused
from ferry.system.user_module import CopiedFile, ProgramCopy

PROGRAM = "program"
"""Name of the folder in the directory of a run."""

INSTALLED = (f"{os.sep}site-packages{os.sep}", f"{os.sep}dist-packages{os.sep}")

OURS = ("ferry", "ferry_operator", "ferry_workloads")


def copy(module: str | None, file: str | None, directory: Path) -> str:
    """The folder with the copy, which takes the place of one that is there. Raises SpecRefused for a file that is not."""
    found = _Program(None if file is None else Path(file).absolute().parent)
    if file is not None:
        try:
            text = Path(file).read_bytes()
        except OSError as error:
            raise SpecRefused(f"spec.pipeline.file: {file}: {error.strerror}") from None
        found.take(None, Path(file), text, package=False)
    elif module is not None:
        found.follow(module)
    folder = directory / PROGRAM
    try:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(mode=0o700)
        ProgramCopy.write(folder, found.texts)
    except OSError as error:
        raise Exhausted(f"{folder}: the program cannot be copied there: {error.strerror}") from None
    return str(folder)


class _Program:
    """The files of a program, as far as its imports tell."""

    def __init__(self, beside: Path | None) -> None:
        """`beside`: the folder of the pipeline's file."""
        self.texts: list[tuple[CopiedFile, bytes]] = []
        self._seen: dict[str, ModuleSpec | None] = {}
        # The user's modules are found here before installed ones, but never in place of Python's own.
        self._path = [os.getcwd(), *sys.path[1:], *([str(beside)] if beside is not None else [])]

    def take(self, module: str | None, path: Path, text: bytes, package: bool) -> None:
        """A file, and all that it imports."""
        name = hashlib.sha256(str(path).encode() + b"\0" + text).hexdigest()
        self.texts.append((CopiedFile(module, str(path.absolute()), f"{name}.py", package), text))
        with suppress(SyntaxError, ValueError):  # which the driver tells
            for one in _imports(ast.parse(text), module, package):
                self.follow(one)

    def follow(self, module: str) -> ModuleSpec | None:
        """A module, the packages around it, and all that they import; None: it is nobody's, or not the user's."""
        if module in self._seen or module.split(".")[0] in (*OURS, *sys.stdlib_module_names):
            return self._seen.get(module)
        self._seen[module] = None
        parent, _, _ = module.rpartition(".")
        around = self.follow(parent) if parent else None
        if parent and (around is None or around.submodule_search_locations is None):
            return None
        places = self._path if around is None else list(around.submodule_search_locations or ())
        with suppress(ImportError, ValueError, OSError):
            spec = self._seen[module] = PathFinder.find_spec(module, places)
            if spec is not None and _is_users(spec.origin):
                assert spec.origin is not None
                packaged = spec.submodule_search_locations is not None
                self.take(module, Path(spec.origin), Path(spec.origin).read_bytes(), packaged)
        return self._seen[module]


def _is_users(origin: str | None) -> bool:
    """Whether this is the source of a module of the user's own."""
    if origin is None or not origin.endswith(".py"):
        return False
    path = os.path.realpath(origin)
    library = tuple(os.path.realpath(sysconfig.get_path(name)) + os.sep for name in ("stdlib", "platstdlib"))
    return not path.startswith(library) and not any(one in path for one in INSTALLED)


def _imports(tree: ast.Module, module: str | None, package: bool) -> Iterator[str]:
    """Names of modules that a file imports, wherever in it; of `from a import b` also a.b, which may be one."""
    around = (module or "").split(".")
    around = around if package else around[:-1]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = around[: len(around) - node.level + 1] if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            if base:
                yield base
                yield from (f"{base}.{alias.name}" for alias in node.names if alias.name != "*")
