"""Imports the user's pipeline as a module, in the driver, in tasks, and in instances with a process of it.

A run on one machine has copies of its programs (`ProgramCopy`): every process of the run reads the copy, and an edit of
the user's files applies to the next program. All modules of a copy are imported below a name with the hash of the
program, `ferry_program_HASH.helper`: two programs of one process never share a module. Imports in the copied texts are
compiled to these names. Tracebacks, `__file__` and neighbours of a file refer to the user's own files.
"""

from __future__ import annotations

import ast
import hashlib
import importlib
import importlib.util
import json
import os
import platform
import re
import shutil
import sys
import tempfile
from collections.abc import Callable, Container, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from importlib.abc import MetaPathFinder, SourceLoader
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

from ferry.contract.errors import SpecRefused
from ferry.contract.program_text import DIGITS, PACKAGE, PREFIX, hash_of
from ferry.contract.user_code import know_lines, reason
from ferry.system import files

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


class ProgramCopy:
    """The copy of a program in one folder, which has the program's hash as its name.

    Of a text that travels the hash is the text's alone. Of the user's files also their paths count: a file with the same
    text in another folder may read other data beside it.

    Example:
        >>> ProgramCopy.of("run/programs/0123456789ab").install()
    """

    def __init__(self, folder: Path, files: Sequence[CopiedFile], texts: Mapping[str, str] | None = None) -> None:
        """`texts`: by name of the copied text; None: they are in the folder."""
        self._folder = folder
        self._texts = texts
        self._modules = {one.module: one for one in files}
        self.package = f"{PACKAGE}{folder.name}"
        self._names = frozenset(one.module.split(".")[0] for one in files if one.module is not None)

    @staticmethod
    def write(top: Path, texts: Sequence[tuple[CopiedFile, bytes]]) -> Path:
        """Write a program of the user's files below this folder, unless the same one is there.

        Returns its folder. Raises OSError.
        """
        return ProgramCopy._write(
            top / hash_of((f"{file.module or ''} {file.path}", text) for file, text in texts), texts
        )

    @staticmethod
    def _write(folder: Path, texts: Sequence[tuple[CopiedFile, bytes]]) -> Path:
        top = folder.parent
        if (folder / MODULES).exists():
            return folder
        top.mkdir(mode=0o700, parents=True, exist_ok=True)
        new = Path(tempfile.mkdtemp(prefix=".", dir=top))
        for file, text in texts:
            (new / file.copy).write_bytes(text)
        ordered = sorted((file for file, _ in texts), key=lambda file: file.module or "")
        (new / MODULES).write_text(json.dumps([asdict(file) for file in ordered], indent=1), "utf-8")
        try:
            new.rename(folder)
        except OSError:
            shutil.rmtree(new)
            if not (folder / MODULES).exists():  # else another process of the run has written the same
                raise
        return folder

    @staticmethod
    def write_text(top: Path, file: str, text: bytes) -> Path:
        """Write a program of one text below this folder; `file` names it in messages. Returns its folder. Raises OSError."""
        return ProgramCopy._write(top / hash_of([(None, text)]), [(CopiedFile(None, file, "pipeline.py"), text)])

    def archive(self) -> Path:
        """The copy in one file, beside its folder, for tasks on other hosts. Raises OSError."""
        file = self._folder.parent / f"{self.package}.json"
        known = list(self._modules.values())
        texts = {one.copy: self.text(one).decode() for one in known}
        with files.replacing(file) as new:
            new.write_text(json.dumps({"files": [asdict(one) for one in known], "texts": texts}), "utf-8")
        return file

    @staticmethod
    def of(folder: str | Path) -> ProgramCopy:
        """The copy in this folder. Raises OSError or ValueError when there is none."""
        documents = json.loads((Path(folder) / MODULES).read_text("utf-8"))
        return ProgramCopy(Path(folder), [CopiedFile(**one) for one in documents])

    @staticmethod
    def of_archive(file: Path) -> ProgramCopy:
        """The copy in this file. Raises OSError or ValueError when there is none."""
        document = json.loads(file.read_text("utf-8"))
        folder = file.parent / file.stem.removeprefix(PACKAGE)
        return ProgramCopy(folder, [CopiedFile(**one) for one in document["files"]], document["texts"])

    @property
    def modules(self) -> list[str]:
        """Names of its modules besides the pipeline's file."""
        return [module for module in self._modules if module is not None]

    def install(self) -> None:
        """From now on this process can import the programs of the run, and shows their lines in tracebacks."""
        _finder().tops[self._folder.parent] = True

    def text(self, file: CopiedFile) -> bytes:
        """Text of a copied file."""
        return self._texts[file.copy].encode() if self._texts is not None else (self._folder / file.copy).read_bytes()

    def name_of(self, module: str | None, file: str | None) -> str:
        """The name of a module of the program; for the pipeline's file a name with its stem."""
        return _file_module(file or "", self._folder.name) if module is None else f"{self.package}.{module}"

    def spec(self, module: str | None, name: str) -> ModuleSpec | None:
        """The spec of a module by its full name, whose imports of the program's modules are of this program.

        None: the module was not copied. A folder without `__init__.py` has no text, but a spec.
        """
        if (one := self._modules.get(module)) is None:
            return self._namespace(module, name)
        text = self.text(one)
        _know_lines(one.path, text)
        return _spec(name, one.path, text, one.package, _Imports(self.package, self._names))

    def _namespace(self, module: str | None, name: str) -> ModuleSpec | None:
        """The spec of a package without a text, which leads to its copied modules and to their neighbours on disk."""
        folders: dict[str, None] = {}
        for one in self._modules.values():
            if module is not None and one.module is not None and one.module.startswith(f"{module}."):
                above = one.module.count(".") - module.count(".") - (not one.package)
                folders[str(Path(one.path).parents[above])] = None
        if not folders:
            return None
        spec = ModuleSpec(name, None, is_package=True)
        spec.submodule_search_locations = [*folders]
        return spec


class _Finder(MetaPathFinder):
    """Finds modules of programs by their full name, in the folders of all copies of the run.

    Python's own import keeps a thread out of a module that another thread imports.
    """

    def __init__(self) -> None:
        self.files: dict[str, tuple[str, bytes]] = {}
        """By module name: path and text of a pipeline's file that has no copy."""
        self.tops: dict[Path, bool] = {}
        self.archives: Callable[[], Path | None] = lambda: None
        self._copies: dict[str, ProgramCopy] = {}

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if (file := self.files.get(fullname)) is not None:
            return _spec(fullname, *file)
        package, _, module = fullname.partition(".")
        if package.startswith(PREFIX) and (copied := self._copy(package[-DIGITS:])) is not None:
            return copied.spec(None, fullname)
        if not package.startswith(PACKAGE) or (copied := self._copy(package.removeprefix(PACKAGE))) is None:
            return None
        return copied.spec(module, fullname) if module else ModuleSpec(package, None, is_package=True)

    def _copy(self, digest: str) -> ProgramCopy | None:
        if digest not in self._copies:
            for top in self.tops:
                with suppress(OSError, ValueError):
                    self._copies[digest] = ProgramCopy.of(top / digest)
        if digest not in self._copies and (folder := self.archives()) is not None:
            with suppress(OSError):
                self._copies[digest] = ProgramCopy.of_archive(folder / f"{PACKAGE}{digest}.json")
        return self._copies.get(digest)


def _finder() -> _Finder:
    """The finder of this process."""
    if all(not isinstance(one, _Finder) for one in sys.meta_path):
        sys.meta_path.insert(0, _Finder())
        sys.path.append(os.getcwd())  # for modules that were not copied
    return next(one for one in sys.meta_path if isinstance(one, _Finder))


def find_archives(folder: Callable[[], Path | None]) -> None:
    """From now on this process can import the programs whose archives are in `folder()`."""
    _finder().archives = folder


NO_NAME = r'[.\s:"\\]'
"""Characters of a file's name that its module cannot have."""

PARSES = 20
"""Tries to parse a module while other threads parse."""


class _Imports(ast.NodeTransformer):
    """Imports modules of a program below its package, wherever the statement is. Names in the program stay as they are."""

    def __init__(self, package: str, names: Container[str]) -> None:
        self._package = package
        self._names = names

    def _renamed(self, name: str) -> str:
        return f"{self._package}.{name}" if name.split(".")[0] in self._names else name

    def visit_Import(self, node: ast.Import) -> list[ast.stmt]:
        """`import a.b` binds a, as before."""
        out: list[ast.stmt] = []
        for alias in node.names:
            name, top = self._renamed(alias.name), alias.name.split(".")[0]
            if name == alias.name or alias.asname or top == alias.name:
                shown = alias.asname or (top if name != alias.name else None)
                out.append(ast.Import([ast.alias(name, shown)]))
            else:
                out += [ast.Import([ast.alias(name, top)]), ast.Import([ast.alias(self._renamed(top), top)])]
        return [ast.copy_location(one, node) for one in out]

    def visit_ImportFrom(self, node: ast.ImportFrom) -> ast.ImportFrom:
        """`from . import b` is below the package already."""
        if node.level == 0 and node.module:
            node.module = self._renamed(node.module)
        return node


class _Text(SourceLoader):
    """Loads a module from a text in place of its file."""

    def __init__(self, path: str, text: bytes, imports: _Imports | None) -> None:
        self._path = path
        self._text = text
        self._imports = imports

    def get_filename(self, fullname: str) -> str:
        return self._path

    def get_data(self, path: str | bytes) -> bytes:
        """Raises OSError for any path but the text's: there is no compiled file."""
        if path != self._path:
            raise FileNotFoundError(path)
        return self._text

    def source_to_code(  # type: ignore[override]
        self, data: Any, path: Any, *, _optimize: int = -1
    ) -> CodeType:
        """Compiled twice: errors of syntax refer to the text, and only the second one has other imports."""
        code: CodeType = compile(data, path, "exec", dont_inherit=True, optimize=_optimize)
        if self._imports is None:
            return code
        for left in reversed(range(PARSES)):
            try:
                tree = ast.fix_missing_locations(self._imports.visit(ast.parse(data, path)))
                code = compile(tree, path, "exec", dont_inherit=True, optimize=_optimize)
                break
            except SystemError:
                # Python 3.11 counts the depth of trees for all threads together: another thread parses, too.
                if not left:
                    raise
        return code


def _file_module(file: str, digest: str) -> str:
    """Name of the module of a pipeline's file. It has no dot: to Python a package stands before a dot."""
    return f"{PREFIX}{re.sub(NO_NAME, '_', Path(file).stem)}_{digest}"


def _spec(
    name: str, path: str, text: bytes, package: bool = False, imports: _Imports | None = None
) -> ModuleSpec | None:
    folder = [str(Path(path).parent)] if package else None
    return importlib.util.spec_from_file_location(
        name, path, loader=_Text(path, text, imports), submodule_search_locations=folder
    )


def _know_lines(path: str, text: bytes) -> None:
    """Make Python show the lines of this text; not of a text that Python cannot read."""
    with suppress(SyntaxError, UnicodeError):
        know_lines(path, importlib.util.decode_source(text))


def load(module: str | None, file: str | None, program: str | None = None) -> ModuleType:
    """Import the user's module; a file is loaded once, under a name with the hash of its content. Raises SpecRefused.

    `program`: folder of the copy that is read instead of the user's files.
    """
    try:
        if program is not None:
            copied = ProgramCopy.of(program)
            copied.install()
            name = copied.name_of(module, file)
            if module is not None:
                return importlib.import_module(name if copied.spec(module, name) is not None else module)
            if copied.spec(None, name) is not None:
                return importlib.import_module(name)
        if module is not None:
            return importlib.import_module(module)
        assert file is not None
        if not Path(file).is_file():
            raise SpecRefused(f"spec.pipeline.file: no file {file}")
        text = Path(file).read_bytes()
        name = _file_module(file, hashlib.sha256(text).hexdigest()[:DIGITS])
        _finder().files[name] = (file, text)
        return importlib.import_module(name)
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
