"""Copies the program of a run into its directory: the pipeline, and the user's modules that it imports.

So a later edit affects only the next run. Installed packages and data files are not copied. Modules whose names are
computed at run time are not found.
"""

from __future__ import annotations

import ast
import hashlib
import os
import sys
import sysconfig
from collections.abc import Iterator
from contextlib import suppress
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path

from ferry.contract.errors import Exhausted, SpecRefused
from ferry.contract.run_directory import PROGRAMS
from ferry.system.user_module import CopiedFile, ProgramCopy

INSTALLED = (f"{os.sep}site-packages{os.sep}", f"{os.sep}dist-packages{os.sep}")

OURS = ("ferry", "ferry_operator", "ferry_workloads")


def copy(module: str | None, file: str | None, directory: Path) -> str:
    """Copy a program, beside earlier copies. Returns its folder. Raises SpecRefused if the file is not readable."""
    program = _Program(None if file is None else Path(file).absolute().parent)
    if file is not None:
        try:
            text = Path(file).read_bytes()
        except OSError as error:
            raise SpecRefused(f"spec.pipeline.file: {file}: {error.strerror}") from None
        program.take(None, Path(file), text, package=False)
    elif module is not None:
        program.follow(module)
    top = directory / PROGRAMS
    try:
        return str(ProgramCopy.write(top, program.texts))
    except OSError as error:
        raise Exhausted(f"{top}: the program cannot be copied there: {error.strerror}") from None


class _Program:
    """The files of a program: the pipeline and its imports."""

    def __init__(self, beside: Path | None) -> None:
        """`beside`: the folder of the pipeline's file."""
        self.texts: list[tuple[CopiedFile, bytes]] = []
        self._seen: dict[str, ModuleSpec | None] = {}
        # The user's modules are found here before installed ones, but never in place of Python's own. Modules beside the
        # file are first, as when Python runs the file.
        self._path = [*([str(beside)] if beside is not None else []), os.getcwd(), *sys.path[1:]]

    def take(self, module: str | None, path: Path, text: bytes, package: bool) -> None:
        """Add a file and its imports."""
        name = hashlib.sha256(str(path).encode() + b"\0" + text).hexdigest()
        self.texts.append((CopiedFile(module, str(path.absolute()), f"{name}.py", package), text))
        with suppress(SyntaxError, ValueError):  # the driver reports the error
            for imported in _imports(ast.parse(text), module, package):
                self.follow(imported)

    def follow(self, module: str) -> ModuleSpec | None:
        """Add a module, its parent packages, and their imports. Returns its spec; None: not found, or not followed."""
        if module in self._seen or module.split(".")[0] in (*OURS, *sys.stdlib_module_names):
            return self._seen.get(module)
        self._seen[module] = None
        parent, _, _ = module.rpartition(".")
        around = self.follow(parent) if parent else None
        if parent and (around is None or around.submodule_search_locations is None):
            return None
        places = self._path if around is None else list(around.submodule_search_locations or ())
        with suppress(ImportError, ValueError, OSError):
            # By its last name: for a whole one Python looks up the parent, which is not imported here, if it is a namespace.
            spec = self._seen[module] = PathFinder.find_spec(module.rpartition(".")[2], places)
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
    return not path.startswith(library) and not any(folder in path for folder in INSTALLED)


def _imports(tree: ast.Module, module: str | None, package: bool) -> Iterator[str]:
    """Names of modules that a file imports anywhere; for `from a import b` also a.b, which may be a module."""
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
