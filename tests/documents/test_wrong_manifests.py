"""What a wrong AscendJob is answered with: one line that names the field."""

from __future__ import annotations

from copy import deepcopy
from typing import Any, NamedTuple

import pytest

from everstep.core.errors import InvalidSpec
from everstep.dialects.registry import compile_document
from tests.documents.test_mindcluster_documents import LABELS, ascend_job

REMOVED = object()
META = ("metadata",)
LABEL = (*META, "labels")
NOTE = (*META, "annotations")
ROLES = ("spec", "replicaSpecs")
MASTER, WORKER = (*ROLES, "Master"), (*ROLES, "Worker")
POD = (*WORKER, "template", "spec")
BOX = (*POD, "containers", 0)
RUN = ("spec", "runPolicy")
INDEX = (*WORKER, "template", "metadata", "annotations", "hccl/rankIndex")
LIMITS, REQUESTS = (*BOX, "resources", "limits"), (*BOX, "resources", "requests")
WAIT = "MINDIO_WAIT_MINDX_TIME"
AVAILABLE = (*RUN, "schedulingPolicy", "minAvailable")
GRACE = "terminationGracePeriodSeconds"


class Wrong(NamedTuple):
    at: tuple[str | int, ...]
    value: Any  # that stands there instead
    message: str  # what is said of it, or a piece
    field: tuple[str | int, ...] | None = None  # that is named, else `at`


W = Wrong
WRONG: tuple[Wrong, ...] = (
    W(("apiVersion",), "v1", "must be mindxdl.gitee.com/v1, not the text \"v1\""),
    W(("apiVersion",), REMOVED, "missing"),
    W(META, REMOVED, "missing; give the job a name"),
    W(META, [], "must be a mapping of keys to values, not a list"),
    W((*META, "name"), REMOVED, "missing; give it a name"),
    W((*META, "name"), 7, "must be text, not the number 7: write it in quotes"),
    W((*META, "name"), "a b", "must be 1 to 63 letters"),
    W((*META, "name"), "a" * 64, "must be 1 to 63 letters"),
    W(LABEL, ["a"], "must be a mapping of keys to values, not a list"),
    W((*LABEL, "pod-rescheduling"), True, "write it in quotes, \"true\""),
    W((*LABEL, "framework"), "jax", "must be one of pytorch, mindspore, tensorflow"),
    W((*LABEL, "fault-retry-times"), 3, "must be text, not the number 3: write it in quotes"),
    W((*LABEL, "fault-retry-times"), "-1", "must be a whole number from 0 to 1000000, not the text"),
    W((*LABEL, "fault-retry-times"), "3.5", "must be a whole number"),
    W((*LABEL, "fault-retry-times"), "many", "must be a whole number"),
    W((*NOTE, "minReplicas"), "0", "must be a whole number from 1"),
    W((*NOTE, "minReplicas"), "5", "must not be more than its replicas (4)"),
    W((*NOTE, "huawei.com/schedule_minAvailable"), "9", "must not be more than its replicas (4)"),
    W((*NOTE, "recover-strategy"), "recovery", "did you mean `recover`?"),
    W((*NOTE, "recover-strategy"), "x", "its values are retry, recover, recover-in-place"),
    W((*NOTE, "recover-strategy"), ["retry"], "must be text, not a list"),
    W((*NOTE, "everstep/overlay"), "nodes: [", "is neither YAML nor JSON"),
    W((*NOTE, "everstep/overlay"), "node: 3", "did you mean `nodes`?", (*NOTE, "everstep/overlay", "node")),
    W(("spec",), REMOVED, "missing; write spec: {replicaSpecs: "),
    W(("spec",), "train", 'must be a mapping of keys to values, not the text "train"'),
    W(("spec", "successPolicy"), "ChiefWorker", "must be one of , AllWorkers"),
    W(ROLES, REMOVED, "missing"),
    W(ROLES, {}, "is empty; say what to run"),
    W(ROLES, [], "must be a mapping of keys to values, not a list"),
    W((*ROLES, "Workers"), ..., "must be one of Master, Chief, Scheduler, Worker"),
    W((*ROLES, "Chief"), ..., "`Master` leads already: keep one of Master, Chief"),
    W((*MASTER, "replicas"), 2, "must be 1, not 2: a job has one Master"),
    W((*WORKER, "replicas"), -1, "must be at least 0, not -1"),
    W((*MASTER, "replicas"), 0, "must be 1, not 0: a job has one Master"),
    W((*WORKER, "replicas"), "3", "must be a whole number, not the text \"3\": write it without quotes"),
    W((*WORKER, "replicas"), 10_001, "must be at most 10000, not 10001"),
    W((*WORKER, "restartPolicy"), "Sometimes", "must be one of Never, OnFailure, Always, ExitCode"),
    W((*WORKER, "template"), REMOVED, "missing"),
    W(INDEX, "one", "must be a node rank, 0 or more, not the text \"one\""),
    W(INDEX, "4", "must be less than its replicas (4)"),
    W(POD, REMOVED, "missing"),
    W((*POD, "containers"), [], "must not be empty"),
    W((*POD, "containers"), {"name": "ascend"}, "must be a list in square brackets"),
    W((*POD, GRACE), -1, "must be at least 0, not -1"),
    W((*POD, GRACE), "900", "write it without quotes"),
    W((*BOX, "command"), "python3 train.py", "must be a list in square brackets"),
    W((*BOX, "args"), [5], "must be text, not the number 5", (*BOX, "args", 0)),
    W((*BOX, "env"), {"A": "1"}, "must be a list in square brackets"),
    W((*BOX, "env"), [{"value": "1"}], "missing; give it a name", (*BOX, "env", 0, "name")),
    W((*BOX, "env"), [{"name": "A", "value": 1}], "write it in quotes", (*BOX, "env", 0, "value")),
    W((*BOX, "env"), [{"name": "A=B"}], "it holds no `=`", (*BOX, "env", 0, "name")),
    W((*BOX, "env"), [{"name": WAIT, "value": "0"}], "from 1 to 3600", (*BOX, "env", 0, "value")),
    W((*LIMITS, "huawei.com/Ascend910"), 1.5, "must be a whole number of devices, not the number 1.5"),
    W((*REQUESTS, "huawei.com/npu"), "all", "must be a whole number of devices, not the text"),
    W(RUN, {"backoffLimit": "3"}, "write it without quotes", (*RUN, "backoffLimit")),
    W(AVAILABLE, 5, "must not be more than its replicas (4)"),
    W(RUN, {"activeDeadlineSeconds": 0}, "must be at least 1, not 0", (*RUN, "activeDeadlineSeconds")),
    W(("everstep",), "train", "must be a mapping of keys to values"),
    W(("everstep",), {"nodess": 2}, "did you mean `nodes`?", ("everstep", "nodess")),
)  # fmt: skip


def changed(wrong: Wrong) -> dict[str, Any]:
    """The AscendJob with this mistake; `...` is a copy of the Master."""
    document: Any = deepcopy(ascend_job(LABELS, {"a": "b"}))
    place = document
    for key in wrong.at[:-1]:
        place = place.setdefault(key, {}) if isinstance(place, dict) else place[key]
    if wrong.value is REMOVED:
        del place[wrong.at[-1]]
    else:
        place[wrong.at[-1]] = place["Master"] if wrong.value is ... else wrong.value
    assert isinstance(document, dict)
    return document


def test_the_job_itself_is_right() -> None:
    assert compile_document(ascend_job(LABELS, {"a": "b"})).phases[0].nodes == 4
    assert len(WRONG) >= 40


@pytest.mark.parametrize("wrong", WRONG, ids=[f"{n} {row.at[-1]}" for n, row in enumerate(WRONG)])
def test_a_wrong_one_gets_one_line_that_names_its_field(wrong: Wrong) -> None:
    with pytest.raises(InvalidSpec) as caught:
        compile_document(changed(wrong))
    ((field, message),) = caught.value.problems
    assert field == ".".join(str(part) for part in (wrong.field or wrong.at))
    assert wrong.message in message
    assert str(caught.value).isprintable()
