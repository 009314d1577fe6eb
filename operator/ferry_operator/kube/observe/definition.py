"""What the definition of StreamJob in the cluster lacks. A value that one thread writes and reconciles read."""

from __future__ import annotations

from dataclasses import dataclass

FIELDS_MAX = 5
"""Fields in the message; it has the number of the others."""


@dataclass(slots=True)
class Definition:
    """The definition of StreamJob in the cluster, compared with this operator."""

    missing: tuple[str, ...] = ()
    """paths of fields of this operator that the definition lacks"""

    @property
    def problem(self) -> str | None:
        """What the definition lacks and what to do, or None."""
        if not self.missing:
            return None
        more = f" and {len(self.missing) - FIELDS_MAX} more" if len(self.missing) > FIELDS_MAX else ""
        return (
            f"the definition of StreamJob is older than the operator: the API server drops "
            f"{', '.join(self.missing[:FIELDS_MAX])}{more}. Apply the definitions of the chart "
            "(helm show crds CHART | kubectl apply --server-side --force-conflicts -f -): `helm upgrade` does so unless "
            "definitions.upgrade is false"
        )
