"""Reads the text of a job's program from its ConfigMap, now and then: the operator has no right to watch ConfigMaps."""

from __future__ import annotations

from dataclasses import dataclass

from ferry.contract.errors import SpecRefused
from ferry_operator.job.models_parts import ConfigMapKey
from ferry_operator.kube.api.port import CONFIG_MAPS, FORBIDDEN, NOT_FOUND, Api, ApiError, tolerate
from ferry_operator.kube.observe.facts import Problem
from ferry_operator.kube.observe.program import Text, text_in

TEXT_SECONDS, TEXTS_PER_SECOND = 3.0, 10.0
"""Seconds between two reads for a job, and reads per second of all jobs: the next read notices an edit."""


@dataclass(slots=True)
class ProgramText:
    """The text of a job's program, as it was read last."""

    source: ConfigMapKey | None = None
    at: float = 0.0
    text: Text | None = None
    problem: Problem | None = None

    def read(self, api: Api, source: ConfigMapKey | None, now: float, jobs: int) -> None:
        """Read the text again if it is due; the last text counts while no API server answers. `jobs`: their number."""
        due = now - self.at >= max(TEXT_SECONDS, jobs / TEXTS_PER_SECOND)
        if source == self.source and not due:
            return
        if source != self.source:
            self.source, self.text, self.problem = source, None, None
        self.at = now
        if source is None:
            return
        try:
            self.text, self.problem = text_in(_config_map(api, source.name), source), None
        except SpecRefused as error:
            self.text, self.problem = None, Problem("ProgramMissing", str(error))
        except ApiError as error:
            if not error.is_transient:
                raise


def _config_map(api: Api, name: str) -> dict[str, object] | None:
    try:
        return api.get(CONFIG_MAPS, name)
    except ApiError as error:
        if error.status == FORBIDDEN:
            raise SpecRefused(
                f"spec.pipeline.configMap: the operator's Role needs `get` of configmaps: {error}"
            ) from None
        tolerate(error, NOT_FOUND)
        return None
