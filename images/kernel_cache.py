"""Where Numba finds compiled kernels in a container whose root is read-only: NUMBA_CACHE_LOCATOR_CLASSES names the class.

Numba refuses a cache that it cannot write. So the directory of the image (NUMBA_CACHE_DIR) is copied, once per container
and as a whole, to the temporary directory; kernels of the user's pipelines are added there. Knows nothing of Ferry.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

from numba.core.caching import UserProvidedCacheLocator


class CopiedCache(UserProvidedCacheLocator):  # type: ignore[misc]
    """Numba's locator of NUMBA_CACHE_DIR, moved to the copy."""

    _cache_path: str

    def __init__(self, py_func: Any, py_file: str) -> None:
        super().__init__(py_func, py_file)
        image = Path(self._cache_path)
        copy = Path(tempfile.gettempdir()) / "ferry-kernels" / image.name
        if not copy.is_dir():
            _copy(image, copy)
        self._cache_path = str(copy)


def _copy(image: Path, copy: Path) -> None:
    """Other processes may do the same at the same time: the first rename wins."""
    copy.parent.mkdir(parents=True, exist_ok=True)
    made = Path(tempfile.mkdtemp(dir=copy.parent))
    if image.is_dir():
        shutil.copytree(image, made, dirs_exist_ok=True, copy_function=shutil.copyfile)
    made.chmod(0o755)
    try:
        os.rename(made, copy)
    except OSError:
        shutil.rmtree(made, ignore_errors=True)
        if not copy.is_dir():
            raise
