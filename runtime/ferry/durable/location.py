"""Where the checkpoints of one job lie: a folder of this machine, or a store that pyarrow knows (S3, GCS, Azure, HDFS).

Must never let an error of a library out, nor a secret in: a failure is `Unreachable` or `Missing`, with the URL and the
operation; credentials come from the environment of the process.
"""

from __future__ import annotations

import errno
import os
import re
import secrets
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import NamedTuple
from urllib.parse import SplitResult, parse_qsl, urlsplit, urlunsplit

import pyarrow as pa
from pyarrow import fs

from ferry.contract.errors import Fault, FerryError, Refusal, SpecRefused, Unreachable
from ferry.system import files

CONNECT_SECONDS = 5
"""Timeout for a connection to a store."""

REQUEST_SECONDS = 30
"""Timeout for a store to send or take a byte."""

ATTEMPTS = 2
"""Attempts of one request: a silent store is an error after a minute, and S3 may answer "slow down" once."""

S3_OPTIONS = ("endpoint_override", "region", "scheme", "tls_ca_file_path")
"""Options after the `?` of an s3 URL."""

READ = "read"
"""The operation for which an absent file is `Missing`."""

_SECRETS = re.compile(r"key|secret|token|password|sas|sig", re.IGNORECASE)


class Missing(Fault):
    """The store has no file of this name."""


class Entry(NamedTuple):
    """One file of a listing."""

    name: str
    bytes: int
    modified: float
    """Seconds since 1970 by the clock of the store."""


class Location:
    """All files of one job: `URL/JOB/NAME`. Names are relative and have `/`."""

    def __init__(self, url: str, job: str) -> None:
        """A path or a URL. Raises SpecRefused when it cannot be a store's."""
        if not job or "/" in job or job.startswith("."):
            raise SpecRefused(f"checkpoints of a job are kept under its name, and {job!r} cannot name a folder")
        self._parts = _checked(url)
        self._open, path = _opened(url, self._parts)
        self._root = f"{path.rstrip('/')}/{job}"
        self._job = job
        self.local = self._parts.scheme in ("", "file")
        """Whether it is a folder that this machine has, or has mounted."""
        self.text = self.url_of("")
        """The URL, for people: it holds no secret."""

    @cached_property
    def _files(self) -> fs.FileSystem:
        """Opened on first use: S3 may have to be asked for the bucket's region. Raises Unreachable."""
        return self._open()

    def url_of(self, name: str) -> str:
        """The URL of a file."""
        whole = f"{self._parts.path.rstrip('/')}/{self._job}/{name}".rstrip("/")
        return urlunsplit(self._parts._replace(path=whole))

    @contextmanager
    def reaching(self, operation: str, name: str) -> Iterator[None]:
        """Turns errors inside into errors of this room; also for files that `input` or `output` returned."""
        try:
            yield
        except FerryError:
            raise
        except FileExistsError as error:
            raise Refusal(f"{self.url_of(name)} already exists, and is never replaced") from error
        except (OSError, pa.ArrowException) as error:
            if operation == READ and self._is_gone(name, error):
                raise Missing(f"{self.url_of(name)} is not there: {error}") from error
            raise Unreachable(f"cannot {operation} {self.url_of(name)}: {error}") from error

    def write_new(self, name: str, data: bytes) -> None:
        """Write a file atomically. Raises Refusal when a file with this name exists.

        On this machine one of two writers of the same name is refused. Other stores are checked first and written then,
        so that two at the same moment may both succeed: callers put a random token into the name.
        """
        with self.reaching("write", name):
            if self.local:
                self._link_new(Path(self._at(name)), data)
            elif self._files.get_file_info(self._at(name)).type != fs.FileType.NotFound:
                raise FileExistsError(name)
            else:
                with self._files.open_output_stream(self._at(name)) as stream:
                    stream.write(data)

    def read(self, name: str) -> bytes:
        """Content of a file. Raises Missing."""
        with self.reaching(READ, name), self._files.open_input_stream(self._at(name)) as stream:
            return bytes(stream.read())

    def output(self, name: str) -> pa.NativeFile:
        """A new file, which is durable in the store, and visible to others, when it is closed.

        Arrow closes garbage-collected files, so a caller that abandons one closes and removes it. An S3 upload of a
        dead process never becomes visible; a rule of the bucket should remove such uploads after some days.
        """
        with self.reaching("write", name):
            if self.local:
                path = Path(self._at(name))
                _make_folder(path.parent)
                return pa.PythonFile(_RenamedAtClose(path), mode="w")
            return self._files.open_output_stream(self._at(name))

    def input(self, name: str) -> pa.NativeFile:
        """A file for random access. Raises Missing."""
        with self.reaching(READ, name):
            return self._files.open_input_file(self._at(name))

    def names(self, prefix: str) -> list[Entry]:
        """All files below a folder, including unfinished ones (see `final_name`); none if the folder does not exist."""
        with self.reaching("list", prefix):
            chosen = fs.FileSelector(self._at(prefix), recursive=True, allow_not_found=True)
            try:
                listed = self._files.get_file_info(chosen)
            except FileNotFoundError:  # it got its final name at this moment
                listed = self._files.get_file_info(chosen)
            found = [info for info in listed if info.is_file]
            if not found and isinstance(self._files, fs.S3FileSystem):
                self._require_bucket()
        cut = len(self._root) + 1
        return [Entry(info.path[cut:], info.size, (info.mtime_ns or 0) / 1e9) for info in found]

    def remove(self, name: str) -> None:
        """Remove a file; an absent one counts as removed."""
        with self.reaching("remove", name):
            try:
                self._files.delete_file(self._at(name))
            except OSError as error:
                if not self._is_gone(name, error):
                    raise

    def _at(self, name: str) -> str:
        return f"{self._root}/{name}".rstrip("/")

    def _is_gone(self, name: str, error: Exception) -> bool:
        """Whether an error means that the file vanished: S3 has many for a file that vanishes between two requests. An
        unreachable store is not asked again."""
        if isinstance(error, FileNotFoundError) or self.local or "NETWORK_CONNECTION" in str(error):
            return isinstance(error, FileNotFoundError)
        try:
            return bool(self._files.get_file_info(self._at(name)).type == fs.FileType.NotFound)
        except OSError:
            return False

    def _require_bucket(self) -> None:
        """S3 lists a bucket that does not exist as empty; a search for checkpoints then has the wrong name."""
        bucket = self._root.partition("/")[0]
        if self._files.get_file_info(bucket).type == fs.FileType.NotFound:
            raise Unreachable(f"{self.text}: there is no bucket {bucket}")

    def _link_new(self, path: Path, data: bytes) -> None:
        _make_folder(path.parent)
        hidden = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
        try:
            hidden.write_bytes(data)
            files.sync(hidden)
            os.link(hidden, path)
        finally:
            hidden.unlink(missing_ok=True)
        files.sync(path.parent)


def final_name(name: str) -> str:
    """The name that a listed file has, or will have once it is written."""
    path = PurePosixPath(name)
    hidden = re.fullmatch(r"\.(.+?)(\.[0-9a-f]{8})?\.tmp", path.name)
    return str(path.with_name(hidden[1])) if hidden else name


class _RenamedAtClose:
    """A file of this machine that is synced and gets its name when it is closed."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._whole = ExitStack()
        self._file = self._whole.enter_context(files.replacing(path, durable=True)).open("wb")
        self.closed = False

    def write(self, data: bytes) -> int:
        return self._file.write(data)

    def flush(self) -> None:
        self._file.flush()

    def tell(self) -> int:
        return self._file.tell()

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            with self._whole:
                self._file.close()
            files.sync(self._path.parent)


def _make_folder(path: Path) -> None:
    """Create a folder and its parents, and sync each into the one above."""
    missing = [each for each in (path, *path.parents) if not each.exists()]
    try:
        path.mkdir(parents=True, exist_ok=True)
    except FileExistsError as error:
        raise NotADirectoryError(errno.ENOTDIR, "no folder", str(path)) from error
    for each in missing:
        files.sync(each.parent)


def _checked(url: str) -> SplitResult:
    parts = urlsplit(url) if "://" in url else SplitResult("", "", url, "", "")
    hidden = [name for name, _ in parse_qsl(parts.query, keep_blank_values=True) if _SECRETS.search(name)]
    if parts.password is not None or (parts.scheme == "s3" and parts.username is not None) or hidden:
        raise SpecRefused(
            f"the URL of the checkpoints ({parts.scheme}://{parts.hostname}) holds a secret, and URLs are printed: "
            "take it out, and give it to the processes by their environment (AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY; "
            "in a cluster from a Secret)"
        )
    return parts


def _opened(url: str, parts: SplitResult) -> tuple[Callable[[], fs.FileSystem], str]:
    try:
        if parts.scheme == "s3":
            return _s3(url, parts)
        store, path = fs.FileSystem.from_uri(url)
        return lambda: store, path
    except (OSError, ValueError, TypeError) as error:
        raise SpecRefused(
            f"checkpoints cannot be kept at {url!r}: {error}; give an absolute path, s3://BUCKET/FOLDER or another URL that "
            "pyarrow.fs opens"
        ) from error


def _s3(url: str, parts: SplitResult) -> tuple[Callable[[], fs.FileSystem], str]:
    options = dict(parse_qsl(parts.query, keep_blank_values=True))
    if unknown := sorted(set(options) - set(S3_OPTIONS)):
        raise SpecRefused(f"the URL {url!r} has {', '.join(unknown)} after its ?; there may be {', '.join(S3_OPTIONS)}")
    if not parts.netloc:
        raise SpecRefused(f"the URL {url!r} names no bucket: s3://BUCKET/FOLDER")

    def store() -> fs.FileSystem:
        if "region" not in options:
            options["region"] = "us-east-1" if "endpoint_override" in options else _region(parts.netloc)
        return fs.S3FileSystem(
            connect_timeout=CONNECT_SECONDS,
            request_timeout=REQUEST_SECONDS,
            retry_strategy=fs.AwsStandardS3RetryStrategy(max_attempts=ATTEMPTS),
            allow_delayed_open=True,  # a small file is one request
            **options,
        )

    return store, f"{parts.netloc}{parts.path}"


def _region(bucket: str) -> str:
    try:
        return str(fs.resolve_s3_region(bucket))
    except OSError as error:
        raise Unreachable(
            f"cannot ask for the region of s3://{bucket}: {error}; set it: s3://{bucket}?region=..."
        ) from error
