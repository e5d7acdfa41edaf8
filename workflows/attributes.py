"""Search attributes: what the lists of the Temporal UI can be filtered by."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from temporalio.common import (
    SearchAttributeKey,
    SearchAttributePair,
    SearchAttributeUpdate,
    TypedSearchAttributes,
)

from everstep.chronicle import views
from everstep.chronicle.chronicle import Chronicle
from everstep.core import names
from everstep.core.bounds import NUMBER_MOST, plain
from everstep.core.deciding.decision import Plan
from everstep.core.state import JobState

KEYS: dict[str, SearchAttributeKey[Any]] = {
    **{name: SearchAttributeKey.for_keyword(name) for name in names.KEYWORDS},
    **{name: SearchAttributeKey.for_int(name) for name in names.INTS},
    **{name: SearchAttributeKey.for_keyword_list(name) for name in names.KEYWORD_LISTS},
}


VALUE_BYTES = 1_500
"""The server refuses values above 2 KB, and with the value the whole task: the job would be wedged."""


def _stored(value: Any) -> Any:
    """A number or a text as the server stores it."""
    if isinstance(value, int):
        return max(-NUMBER_MOST, min(value, NUMBER_MOST))
    return _cut(value) if isinstance(value, str) else value


def _cut(text: str) -> str:
    return plain(text).encode()[:VALUE_BYTES].decode(errors="ignore")


def _fitting(nodes: Sequence[str]) -> list[str] | None:
    """The first nodes, as far as one value holds them; all of them are in the records and the status."""
    fitting, left = [], VALUE_BYTES
    for node in map(plain, nodes):
        left -= len(node.encode()) + 3  # quotes and a comma
        if left < 0:
            break
        fitting.append(node)
    return fitting or None


def of_job(state: JobState, chronicle: Chronicle) -> dict[str, Any]:
    """The attributes of a job: where it is, and its newest incident."""
    records = chronicle.records
    newest = records[-1].decision if records else None
    values = {
        "TrainJob": state.job.id,
        "TrainState": views.shown_state(state),
        "TrainPhase": state.phase.name,
        "TrainCluster": state.spec.cluster,
        "Restarts": views.restarts(state),
        "LastStep": views.step(state),
        "IsolatedNodes": _fitting(sorted(state.isolated)),
        "FaultClass": str(newest.fault.cls) if newest else None,
        "FaultCode": newest.fault.code if newest else None,
        "FaultNodes": _fitting(newest.fault.nodes) if newest else None,
        "RecoveryLevel": str(newest.level) if newest else None,
        "RecoveryResult": FAILED.get(records[-1].result, records[-1].result) if records else None,
    }
    return {name: _stored(value) for name, value in values.items()}


FAILED: Mapping[str, str] = {"downgrade": "failed"}
"""Of a record's results, those that a Recovery has another word for."""

CLOSED_AS: Mapping[str, str] = {
    "success": "completed",
    "failed": "failed",
    "superseded": "stopped",
    "cancelled": "stopped",
}
"""Results of a Recovery, and the state in which its row closes."""


def of_result(result: str) -> list[SearchAttributeUpdate[Any]]:
    """The last search attributes of a Recovery, when it closes."""
    closed = {"RecoveryResult": result, "TrainState": CLOSED_AS[result]}
    return [KEYS[name].value_set(value) for name, value in closed.items()]


def of_refusal(job: str) -> list[SearchAttributeUpdate[Any]]:
    """Search attributes of a job whose document was refused."""
    values = {"TrainJob": job, "TrainState": "failed"}
    return [KEYS[name].value_set(value) for name, value in values.items()]


def of_recovery(state: JobState, chronicle: Chronicle, plan: Plan) -> TypedSearchAttributes:
    """The attributes of a Recovery: its fault and level, and the nodes that it isolates."""
    values = {
        **of_job(state, chronicle),
        "TrainState": "recovering",
        "RecoveryLevel": str(plan.level),
        "RecoveryResult": None,
        "IsolatedNodes": _fitting([isolation.node for isolation in plan.remedy.isolate]),
    }
    return TypedSearchAttributes(
        [
            SearchAttributePair(KEYS[name], value)
            for name, value in values.items()
            if value is not None
        ]
    )


def updates(state: JobState, chronicle: Chronicle) -> list[SearchAttributeUpdate[Any]]:
    """Updates of all attributes, also unchanged ones: a replay by newer code must give the same commands."""
    return [
        KEYS[name].value_unset() if value is None else KEYS[name].value_set(value)
        for name, value in of_job(state, chronicle).items()
    ]
