"""Imports the user's pipeline as a module, in the driver and in instances with a process of it.

A run on one machine has a copy of the program from its start (`ProgramCopy`): every process of the run reads the copy,
and an edit of the user's files applies to the next run. Tracebacks, `__file__` and neighbours of a file refer to the
user's own files.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import json
import linecache
import os
import platform
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from importlib.abc import MetaPathFinder, SourceLoader
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType

from ferry.contract.errors import SpecRefused
from ferry.contract.program_text import PREFIX
from ferry.contract.user_code import reason

MODULES = "modules.json"
"""Index of the files in a copy's folder. Their texts are beside it, by their hash."""


@dataclass(frozen=True, slots=True)
class CopiedFile:
    """One file of a program."""

    module: str | None
    """its import name; None: the pipeline's file"""
    path: str
    """path of the user's own file"""
    copy: str
    """name of its copied text"""
    package: bool = False


class ProgramCopy(MetaPathFinder):
    """The copy of a program in one folder; as a module finder it serves the copied texts.

    Example:
        >>> ProgramCopy.of("run/program").install()
    """

    def __init__(self, folder: Path, files: Sequence[CopiedFile]) -> None:
        self._folder = folder
        self._files = tuple(files)
        self._modules = {one.module: one for one in files}

    @staticmethod
    def write(folder: Path, texts: Sequence[tuple[CopiedFile, bytes]]) -> None:
        """Write these files into the folder, which is empty."""
        for one, text in texts:
            (folder / one.copy).write_bytes(text)
        (folder / MODULES).write_text(json.dumps([asdict(one) for one, _ in texts], indent=1), "utf-8")

    @staticmethod
    def of(folder: str | Path) -> ProgramCopy:
        """The copy in this folder. Raises OSError or ValueError when there is none."""
        documents = json.loads((Path(folder) / MODULES).read_text("utf-8"))
        return ProgramCopy(Path(folder), [CopiedFile(**one) for one in documents])

    def install(self) -> None:
        """From now on this process imports the copies, and shows their lines in tracebacks."""
        if not any(isinstance(one, ProgramCopy) for one in sys.meta_path):
            sys.meta_path.insert(0, self)
            sys.path.append(os.getcwd())  # for modules that were not copied
            for one in self._files:
                _know_lines(one.path, self.text(one))

    def text(self, file: CopiedFile) -> bytes:
        """Text of a copied file."""
        return (self._folder / file.copy).read_bytes()

    def of_pipeline(self) -> bytes | None:
        """The text of the pipeline's file; None: the pipeline is a module."""
        one = self._modules.get(None)
        return None if one is None else self.text(one)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if (one := self._modules.get(fullname)) is None:
            return None
        return _spec(fullname, one.path, self.text(one), one.package)


class _Text(SourceLoader):
    """Loads a module from a text in place of its file."""

    def __init__(self, path: str, text: bytes) -> None:
        self._path = path
        self._text = text

    def get_filename(self, fullname: str) -> str:
        return self._path

    def get_data(self, path: str | bytes) -> bytes:
        """Raises OSError for any path but the text's: there is no compiled file."""
        if path != self._path:
            raise FileNotFoundError(path)
        return self._text


def _spec(name: str, path: str, text: bytes, package: bool = False) -> ModuleSpec | None:
    folder = [str(Path(path).parent)] if package else None
    return importlib.util.spec_from_file_location(
        name, path, loader=_Text(path, text), submodule_search_locations=folder
    )


def _know_lines(path: str, text: bytes) -> None:
    """Make Python show these lines of the file, whatever the file contains by now."""
    with suppress(SyntaxError, UnicodeError):
        lines = importlib.util.decode_source(text).splitlines(keepends=True)
        linecache.cache[path] = (len(text), None, lines, path)


def load(module: str | None, file: str | None, program: str | None = None) -> ModuleType:
    """Import the user's module; a file is loaded once, under a name with the hash of its content. Raises SpecRefused.

    `program`: folder of the copy that is read instead of the user's files.
    """
    try:
        copies = None if program is None else ProgramCopy.of(program)
        if copies is not None:
            copies.install()
        if module is not None:
            return importlib.import_module(module)
        assert file is not None
        text = copies.of_pipeline() if copies is not None else None
        if text is None:
            if not Path(file).is_file():
                raise SpecRefused(f"spec.pipeline.file: no file {file}")
            text = Path(file).read_bytes()
        digest = hashlib.sha256(text).hexdigest()[:12]
        name = f"{PREFIX}{Path(file).stem}_{digest}"
        spec = _spec(name, file, text)
        assert spec is not None and spec.loader is not None
        made = importlib.util.module_from_spec(spec)
        sys.modules[name] = made
        spec.loader.exec_module(made)
        return made
    except SpecRefused:
        raise
    except SyntaxError as error:
        at = f"{Path(error.filename or '?').name}:{error.lineno}"
        line = f': "{error.text.strip()}"' if error.text else ""
        version = f"; this is Python {platform.python_version()}" if type(error) is SyntaxError else ""
        raise SpecRefused(
            f"spec.pipeline: {module or file} cannot be imported: {type(error).__name__}: {error.msg} ({at}{line}){version}"
        ) from error
    except BaseException as error:
        raise SpecRefused(f"spec.pipeline: {module or file} cannot be imported: {reason(error)}") from error
