"""Local activities: pure functions whose answers have to be in the history."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from temporalio import activity

from activities.failures import translated
from everstep.core.deciding.decide import decide
from everstep.core.deciding.decision import Decision
from everstep.core.deciding.decision_input import DecisionInput
from everstep.core.spec import JobSpec
from everstep.dialects.dialect import HasPods, has_pods_by_name
from everstep.dialects.registry import compile_document, patch
from everstep.faults.meanings import informed

UNDISTURBED = {"no_thread_cancel_exception": True}
"""A cancelled call is raised in its thread at any moment, also after its end. These calls are short."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalActivities:
    """What the worker adds to a document: the scale of time for rehearsals, and what its cluster makes."""

    time_scale: float = 1.0
    has_pods: HasPods = has_pods_by_name

    @activity.defn(name="compile", **UNDISTURBED)
    def compile(self, document: Any) -> JobSpec:
        """The document as a job, or `InvalidSpec` naming its fields."""
        with translated():
            return compile_document(document, time_scale=self.time_scale, has_pods=self.has_pods)

    @activity.defn(name="patch", **UNDISTURBED)
    def patch(self, document: Any, fragment: dict[str, Any]) -> Any:
        """The document with a fragment of its spec changed, if that is a valid one."""
        with translated():
            changed = patch(document, fragment, has_pods=self.has_pods)
            compile_document(changed, has_pods=self.has_pods)
            return changed

    @activity.defn(name="decide", **UNDISTURBED)
    def decide(self, inputs: DecisionInput) -> Decision:
        """Decide about a fault. The decision is part of the history from now on."""
        return decide(informed(inputs))

    def all(self) -> list[Any]:
        return [self.compile, self.patch, self.decide]
