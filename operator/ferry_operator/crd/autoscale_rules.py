"""The rules of `spec.autoscale` in CEL; `job.models_autoscale` makes the same checks for `ferry run`.

Pure: a part of the table in `rules`.
"""

from __future__ import annotations

from ferry_operator.crd.rule import Rule, in_spec

AUTOSCALE: tuple[Rule, ...] = (
    Rule(
        "autoscale-min-max",
        "spec.autoscale",
        "!has(self.max) || !has(self.min) || self.min <= self.max",
        "min must not be more than max",
        broken=in_spec(autoscale={"min": 5}),
        valid=in_spec(autoscale={"min": 4, "max": 4}),
        field_path=".min",
    ),
    Rule(
        "autoscale-min-holds-copies",
        "spec",
        "!has(self.autoscale.max) || (has(self.autoscale.min) ? self.state.replicas < self.autoscale.min || "
        "(self.autoscale.min == 1 && self.state.replicas == 1) : self.state.replicas < self.autoscale.max || "
        "(self.autoscale.max == 1 && self.state.replicas == 1))",
        "autoscale.min, or without it max, must be more than state.replicas: every copy needs a worker of its own",
        broken=in_spec(autoscale={"min": 2}),
        valid=in_spec(workers=3, state={"replicas": 2}, autoscale={"min": 3, "max": 4}),
        field_path=".autoscale.min",
    ),
    Rule(
        "autoscale-max-within-virtual-nodes",
        "spec",
        "!has(self.autoscale.max) || self.autoscale.max * self.instancesPerWorker <= self.state.virtualNodes",
        "autoscale.max workers have more instances than state.virtualNodes: some instances would lead no virtual node",
        broken=in_spec(autoscale={"max": 5}),
        valid=in_spec(instancesPerWorker=2, state={"virtualNodes": 8}, autoscale={"max": 4}),
        field_path=".autoscale.max",
    ),
)
"""No other rule refuses a size that the autoscaler may write."""
