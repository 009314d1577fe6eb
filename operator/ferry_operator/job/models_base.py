"""The shared base of all parts of the `StreamJob` document: strict models, effects of changes, texts with bounds.

Pure values and checks: no I/O, no field of a job. The parts themselves are in `models` and `models_kubernetes`.
"""

from __future__ import annotations

import math
import re
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel
from pydantic.config import JsonDict

CHANGE_EFFECT = "x-ferry-change"
"""Key of a field's schema under which `changes` finds the effect of a change; never part of the CRD."""

IMMUTABLE: JsonDict = {
    "x-kubernetes-validations": [{"rule": "self == oldSelf", "message": "cannot be changed: create a new job"}]
}
"""Marks a field that keeps its first value; `spec.immutable_changes` and the CRD both read it."""

PATH_MAX = 1024
"""Largest number of characters of a path, an image or an address: it bounds the cost of the rules on them."""

NESTED_MAX = 32
"""Maps and lists within each other in a map for Kubernetes; a pod has some ten."""

DNS_LABEL_PATTERN = "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"
NAME_PATTERN = "^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$"
PASSWORD_PATTERN = "(?i)^([a-z][a-z0-9+.-]*://[^/?#]*:[^/?#]*@|s3://[^/?#]*@|[^?]*[?](.*&)?[^=&]*(key|secret|token|password|sas|sig)[^=&]*=)"
"""A URL with a password or a token in it; the rule of the CRD uses the same pattern."""
PATH_PATTERN = r"^(/([^/.][^/]*|[.][^/.][^/]*|[.][.][^/]+))+$"

RESERVED = ("/etc/ferry", "/var/lib/ferry")
"""Directories of a pod in which Ferry mounts its own files."""

Where = Literal["both", "kubernetes", "one machine"]


class SpecPart(BaseModel):
    """A part of the document: camelCase names, unknown fields refused, never changed after reading."""

    model_config = ConfigDict(
        alias_generator=to_camel, extra="forbid", frozen=True, strict=True, validate_default=True, allow_inf_nan=False
    )


def live(what: str, used: Where = "both") -> JsonDict:
    """A change takes effect while all processes keep running."""
    return _effect("live", what, used)


def handover(what: str, used: Where = "both") -> JsonDict:
    """A change makes state move between instances; the query and the driver go on."""
    return _effect("handover", what, used)


def restart(what: str, used: Where = "both") -> JsonDict:
    """A change restarts the driver, which goes on from the warm state of the workers."""
    return _effect("restart", what, used, driver=True)


def switch(what: str, used: Where = "both") -> JsonDict:
    """A change is deployed while the job runs: one epoch has the old program, and the next one the new program."""
    return _effect("switch", what, used)


def rolling(what: str, used: Where = "both", driver: bool = True) -> JsonDict:
    """A change empties and replaces the worker pods one after another; `driver`: it restarts the driver, too."""
    return _effect("rolling", what, used, driver)


def refused(what: str, used: Where = "both") -> JsonDict:
    """A change is refused: the field keeps its first value."""
    return {**IMMUTABLE, **_effect("refused", what, used)}


def never_running(what: str, used: Where = "both") -> JsonDict:
    """A change is refused unless the job is suspended; the rule of the CRD is written by hand."""
    return _effect("refused", what, used)


def _effect(kind: str, what: str, used: Where, driver: bool = False) -> JsonDict:
    return {CHANGE_EFFECT: {"kind": kind, "what": what, "used": used, "driver": driver}}


def is_below(path: str, directory: str) -> bool:
    """Whether `path` is `directory` or lies in it; both absolute."""
    return path == directory or path.startswith(directory.rstrip("/") + "/")


def _location(value: str) -> str:
    if re.match(PASSWORD_PATTERN, value):
        raise ValueError(
            "may not hold a password: every reader of the job would see it. Name a Secret in kubernetes.envFrom, or on "
            "one machine set the variables that the file system reads"
        )
    return value


def _dns_label(value: str) -> str:
    if not re.fullmatch(DNS_LABEL_PATTERN, value):
        raise ValueError("must be lower-case letters, digits and '-', beginning and ending with a letter or digit")
    return value


def _absolute(value: str) -> str:
    if not re.fullmatch(PATH_PATTERN, value):
        raise ValueError("must be an absolute path without '.', '..', '//' or a '/' at its end, such as '/data/in'")
    return value


def _json(value: Any) -> Any:
    """The value, if all of its parts are JSON values; raises ValueError otherwise."""
    return _part(value, NESTED_MAX)


def _part(value: Any, depth: int) -> Any:
    if depth == 0 and isinstance(value, dict | list):
        raise ValueError(f"at most {NESTED_MAX} maps and lists may be nested")
    if isinstance(value, dict):
        return {key: _part(item, depth - 1) for key, item in value.items()}
    if isinstance(value, list):
        return [_part(item, depth - 1) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError("a number must be finite")
    if not (value is None or isinstance(value, str | int | float)):
        raise ValueError("must be text, numbers, true, false, null, lists and maps")
    return value


DnsLabel = Annotated[str, AfterValidator(_dns_label), Field(json_schema_extra={"pattern": DNS_LABEL_PATTERN})]
"""A name of an object that Kubernetes uses as a part of a host name."""

AbsolutePath = Annotated[str, AfterValidator(_absolute), Field(json_schema_extra={"pattern": PATH_PATTERN})]
"""A path below the root, in its shortest spelling."""

Location = Annotated[str, AfterValidator(_location), Field(min_length=1, max_length=PATH_MAX)]
"""A path, or a URL of `pyarrow.fs` without a password."""

ObjectName = Annotated[str, Field(min_length=1, max_length=253, pattern=NAME_PATTERN)]
"""Name of an object of Kubernetes."""

FreeMap = Annotated[dict[str, Any], AfterValidator(_json)]
"""A map that Kubernetes gets unchanged."""
