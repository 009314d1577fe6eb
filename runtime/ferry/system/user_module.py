"""The user's pipeline as a module: the driver loads it, and so does an instance that runs a process of it."""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType

from ferry.contract.errors import SpecRefused
from ferry.contract.user_code import reason

PREFIX = "ferry_pipeline_"
"""What the names of modules begin with that are files of the user's."""


def load(module: str | None, file: str | None) -> ModuleType:
    """Import the user's module; a file is loaded under a name that contains its content's hash, once. Raises SpecRefused."""
    try:
        if module is not None:
            return importlib.import_module(module)
        assert file is not None
        path = Path(file)
        if not path.is_file():
            raise SpecRefused(f"spec.pipeline.file: no file {file}")
        digest = hashlib.sha256(path.read_bytes()).hexdigest()[:12]
        name = f"{PREFIX}{path.stem}_{digest}"
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec is not None and spec.loader is not None
        made = importlib.util.module_from_spec(spec)
        sys.modules[name] = made
        spec.loader.exec_module(made)
        return made
    except SpecRefused:
        raise
    except (Exception, SystemExit) as error:
        raise SpecRefused(f"spec.pipeline: {module or file} cannot be imported: {reason(error)}") from error
