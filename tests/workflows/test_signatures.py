"""The signatures with which workflows call activities are those of the activities that workers run."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, get_type_hints

import pytest
from temporalio import activity

from activities.cluster_activities import ClusterActivities
from activities.janitor_activities import JanitorActivities
from activities.local_activities import LocalActivities
from activities.publishing import Publishing
from workflows import signatures

Activity = Callable[..., Any]

NOTHING: Any = None
BODIES: tuple[Activity, ...] = (
    *LocalActivities().all(),
    *ClusterActivities(backend=NOTHING, quarantine=NOTHING).all(),
    *Publishing(backend=NOTHING).all(),
    *JanitorActivities(backend=NOTHING, client=NOTHING, server="").all(),
)
BY_HAND = {"sweep"}
"""No workflow calls it: an operator and tests do, by its name."""


def name_of(called: Activity) -> str:
    definition = activity._Definition.must_from_callable(called)  # as a worker reads it
    assert definition.name is not None
    return definition.name


def shape_of(called: Activity) -> tuple[object, ...]:
    """Arguments with their types and defaults, the type of the result, and whether it is a coroutine."""
    hints = get_type_hints(called)
    arguments = [
        (one.name, hints[one.name], one.default)
        for one in inspect.signature(called).parameters.values()
        if one.name != "self"
    ]
    return arguments, hints["return"], inspect.iscoroutinefunction(called)


def declared() -> Iterator[Activity]:
    yield from signatures.STEPS.values()
    for one in vars(signatures).values():
        if inspect.isfunction(one) and activity._Definition.from_callable(one) is not None:
            yield one


DECLARED: Mapping[str, Activity] = {name_of(one): one for one in declared()}


def test_each_activity_of_a_worker_has_a_signature_and_no_other_has() -> None:
    assert {*map(name_of, BODIES)} - BY_HAND == DECLARED.keys()


@pytest.mark.parametrize("body", BODIES, ids=name_of)
def test_a_signature_is_that_of_its_body(body: Activity) -> None:
    name = name_of(body)
    if name not in BY_HAND:
        assert shape_of(DECLARED[name]) == shape_of(body)


def test_another_argument_or_result_is_another_shape() -> None:
    async def of_nodes(node: str) -> tuple[str, ...]:
        raise NotImplementedError

    async def without_node() -> tuple[int, ...]:
        raise NotImplementedError

    shapes = [shape_of(one) for one in (signatures.devices_of, of_nodes, without_node)]
    assert all(shapes.count(shape) == 1 for shape in shapes)


CALLS = {"execute_activity", "execute_local_activity", "start_activity", "start_local_activity"}


def test_no_workflow_names_an_activity_by_a_text() -> None:
    calls = [
        (path.name, node.lineno, node.args[0])
        for path in sorted((Path(__file__).parents[2] / "workflows").glob("*.py"))
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in CALLS
    ]
    assert len(calls) >= 12
    texts = [
        (name, line)
        for name, line, called in calls
        if isinstance(called, ast.Constant | ast.JoinedStr)
    ]
    typed = [(name, line) for name, line, called in calls if "str(" in ast.unparse(called)]
    assert texts + typed == [], "pass the function of workflows/signatures.py"
