"""Pods of Kubernetes are placed by requests of which each may fail, and the worker may be killed at each."""

from __future__ import annotations

import copy
import itertools
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from everstep.backends.kubernetes.api import Json, Unreachable
from everstep.backends.kubernetes.books import JobSession
from everstep.backends.kubernetes.placing.placer import CREATED_PER_CALL, PodPlacer
from everstep.core.errors import BackendUnavailable, InvalidSpec
from everstep.core.world import PlaceOrder
from tests.backends.objects_in_memory import (
    NAMESPACE,
    ObjectsInMemory,
    Request,
    launched,
    order_of,
    placer_of_a_new_worker,
    refused,
)

QUOTA = 'pods "train-1-g1" is forbidden: exceeded quota: few, requested: pods=1, used: pods=1'


class Killed(BaseException):
    """Ends a worker at this very moment."""


def failing_once(request: Request, error: BaseException) -> Callable[[Request], None]:
    errors = iter([error])

    def fail(one: Request) -> None:
        if one[:2] == request[:2] and names_of(one) == names_of(request):
            for each in errors:
                raise each

    return fail


def names_of(request: Request) -> str:
    return str(request.body.get("metadata", {}).get("name", ""))


async def requests_of(order: PlaceOrder, *, has_secret: bool = False) -> list[Request]:
    """What a placement sends where nothing fails, each request once."""
    api = ObjectsInMemory()
    placer = await launched(api, has_secret=has_secret)
    api.requests.clear()
    await placed(placer, order)
    return [*{(one.method, one.path, names_of(one)): one for one in api.requests}.values()]


async def placed(placer: PodPlacer, order: PlaceOrder) -> None:
    """Until each pod of the order is created; there is nothing that makes them run."""
    for _ in range(20):
        await placer.ensure_placed(order)
        entries = (await placer.books.read(order.job.id)).document.pods
        if all(one.uid and not (one.is_leaving or one.is_withdrawn) for one in entries):
            return
    pytest.fail("pods are never created")


ERRORS = {
    "refused for now": lambda: refused(503, "overloaded"),
    "unreachable": lambda: Unreachable("connection reset"),
}


@pytest.mark.parametrize("slots", [(0,), (0, 1, 2)], ids=["one pod", "three pods"])
@pytest.mark.parametrize("error", ERRORS.values(), ids=ERRORS)
@pytest.mark.parametrize("moment", ["before", "after"])
@pytest.mark.parametrize("has_secret", [False, True])
async def test_a_request_that_fails_beside_others_loses_nothing_and_the_next_call_completes(
    slots: tuple[int, ...], error: Callable[[], Exception], moment: str, *, has_secret: bool
) -> None:
    order = order_of(*slots)
    for request in await requests_of(order, has_secret=has_secret):
        api = ObjectsInMemory()
        placer = await launched(api, has_secret=has_secret)
        setattr(api, moment, failing_once(request, error()))
        with pytest.raises(BackendUnavailable):
            await placer.ensure_placed(order)
        assert api.under_way == 0, f"requests go on after {request[:2]} failed"
        objects = copy.deepcopy(api.objects)
        await placed(placer, order)
        assert uids_of(objects).items() <= uids_of(api.objects).items(), "an object was lost"
        assert set(api.of("pods")) == {f"train-{slot}-g1" for slot in slots}
        assert len(api.of("secrets")) == 1
        assert len(api.of("podgroups")) == (len(slots) > 1)


def uids_of(objects: dict[str, Json]) -> dict[str, str]:
    return {path: one["metadata"]["uid"] for path, one in objects.items()}


async def test_a_pod_beyond_a_quota_is_waited_for_and_the_others_are_created() -> None:
    api = ObjectsInMemory()
    placer = await launched(api)
    is_full = True

    def quota(request: Request) -> None:
        if is_full and request.path.endswith("/pods") and names_of(request) == "train-1-g1":
            raise refused(403, QUOTA, "Forbidden")

    api.before = quota
    state, _ = await placer.ensure_placed(order_of(0, 1))
    assert not state.placed
    assert "exceeded quota: few" in state.waiting_for
    assert set(api.of("pods")) == {"train-0-g1"}
    is_full = False
    await placed(placer, order_of(0, 1))
    assert Counter(api.created("pods")) == {"train-0-g1": 1, "train-1-g1": 2}


async def test_a_large_job_is_created_in_calls_that_end_soon_and_is_not_sent_twice() -> None:
    """A call that takes too long is given up, and with it the uids that it did not store."""
    api = ObjectsInMemory()
    placer = await launched(api)
    order = order_of(*range(2 * CREATED_PER_CALL + 1))
    for expected in (CREATED_PER_CALL, 2 * CREATED_PER_CALL, len(order.slots)):
        _, again_at = await placer.ensure_placed(order)
        assert len(api.of("pods")) == expected
        assert (again_at is not None) == (expected < len(order.slots))
        placer = placer_of_a_new_worker(api)
    assert set(Counter(api.created("pods")).values()) == {1}


@pytest.mark.parametrize("has_secret", [False, True])
@pytest.mark.parametrize("slots", [(0,), (0, 1, 2)], ids=["one pod", "three pods"])
async def test_the_one_pod_without_an_answer_is_sent_again_alone(
    slots: tuple[int, ...], *, has_secret: bool
) -> None:
    """A busy API server is late with one of many, and would be late again with all of them."""
    api = ObjectsInMemory()
    placer = await launched(api, has_secret=has_secret)
    order = order_of(*slots)
    late = next(one for one in await requests_of(order) if names_of(one) == f"train-{slots[-1]}-g1")
    api.after = failing_once(late, Unreachable("no answer for 30 s"))
    with pytest.raises(BackendUnavailable, match="no answer for 30 s"):
        await placer.ensure_placed(order)
    await placed(placer, order)
    expected = Counter({f"train-{slot}-g1" for slot in slots})
    expected[f"train-{slots[-1]}-g1"] += 1
    assert Counter(api.created("pods")) == expected


async def test_pods_beyond_a_quota_are_not_sent_again_at_once() -> None:
    api = ObjectsInMemory()
    placer = await launched(api)

    def quota(request: Request) -> None:
        if request.method == "POST" and request.path.endswith("/pods"):
            raise refused(403, QUOTA, "Forbidden")

    api.before = quota
    _, again_at = await placer.ensure_placed(order_of(*range(CREATED_PER_CALL + 1)))
    assert again_at is None


async def test_a_group_beyond_a_quota_is_waited_for() -> None:
    api = ObjectsInMemory()
    placer = await launched(api)
    group = next(
        one
        for one in await requests_of(order_of(0, 1))
        if "podgroup" in one.path and one.method == "POST"
    )
    api.before = failing_once(group, refused(403, "exceeded quota: groups", "Forbidden"))
    state, _ = await placer.ensure_placed(order_of(0, 1))
    assert "exceeded quota: groups" in state.waiting_for
    await placed(placer, order_of(0, 1))
    assert len(api.of("podgroups")) == 1


async def test_a_pod_that_is_refused_for_ever_is_not_waited_for() -> None:
    api = ObjectsInMemory()
    placer = await launched(api)
    pod = next(one for one in await requests_of(order_of(0)) if one.path.endswith("/pods"))
    api.before = failing_once(pod, refused(422, "spec.containers: Invalid value", "Invalid"))
    with pytest.raises(InvalidSpec, match=r"spec\.containers: Invalid value"):
        await placer.ensure_placed(order_of(0))


@pytest.mark.parametrize("slots", [(0,), (0, 1)], ids=["one pod", "two pods"])
@pytest.mark.parametrize("node", ["", "removed"])
async def test_a_pod_that_is_deleted_before_its_agent_answered_is_created_again(
    slots: tuple[int, ...], node: str
) -> None:
    """By a person, by a queue that takes its quota back, or with its node, while no worker looked."""
    api = ObjectsInMemory()
    order = order_of(*slots)
    await placed(await launched(api), order)
    del api.objects[f"/api/v1/namespaces/{NAMESPACE}/pods/train-0-g1"]
    placer = placer_of_a_new_worker(api)
    placer.watch.absent.removed["removed"] = 0.0

    def note_node(session: JobSession) -> None:
        session.update(replace(session.entries[0], node=node))

    await placer.books.transact(order.job.id, note_node)
    await placer.ensure_placed(order)  # finds out
    await placed(placer, order)
    assert set(api.of("pods")) == {f"train-{slot}-g1" for slot in slots}
    entry, *_ = (await placer.books.read(order.job.id)).document.pods
    assert (entry.failures, entry.failure) == (1, "it was deleted")


@pytest.mark.parametrize(
    ("is_deleted", "why"), [(True, "it was deleted"), (False, "prepare exit code 7")]
)
async def test_a_pod_that_failed_and_was_removed_between_two_looks_counts_as_a_failed_start(
    is_deleted: bool, why: str
) -> None:
    """Else a controller that deletes each one at once would have new ones made without end."""
    api = ObjectsInMemory()
    order = order_of(0)
    placer = await launched(api)
    for failures in (1, 2):
        await placed(placer, order)
        path = f"/api/v1/namespaces/{NAMESPACE}/pods/train-0-g1"
        pod = api.objects.pop(path)
        ended = {"name": "prepare", "state": {"terminated": {"exitCode": 7}}}
        pod["status"] = {"phase": "Failed", "initContainerStatuses": [ended]}
        if is_deleted:
            pod["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
        placer.watch._pod_changed(None, pod)
        state, _ = await placer.ensure_placed(order)
        entry, *_ = (await placer.books.read(order.job.id)).document.pods
        assert (entry.start_failures, entry.failure) == (failures, why)
        assert state.start_failures == failures


# -- Another number of pods, none of which has a node: they become pods of a new group --------------


SIZES = {"smaller": ((0, 1, 2, 3), (0, 1, 2)), "larger": ((0, 1), (0, 1, 2))}


@pytest.mark.parametrize("sizes", SIZES.values(), ids=SIZES)
@pytest.mark.parametrize("moment", ["before", "after"])
async def test_a_worker_killed_while_pods_change_their_group_leaves_the_rest_to_another_one(
    sizes: tuple[tuple[int, ...], tuple[int, ...]], moment: str
) -> None:
    first, second = order_of(*sizes[0]), order_of(*sizes[1])
    for number in itertools.count():
        api = ObjectsInMemory()
        await placed(await launched(api), first)
        setattr(api, moment, killing_at(number))
        try:
            await placed(placer_of_a_new_worker(api), second)
        except Killed:
            is_killed = True
        else:
            is_killed = False
        api.before = api.after = lambda _request: None
        await placed(placer_of_a_new_worker(api), second)
        groups = {one["spec"]["schedulingGroup"]["podGroupName"] for one in api.of("pods").values()}
        assert set(api.of("pods")) == {f"train-{slot}-g1" for slot in sizes[1]}
        assert groups == set(api.of("podgroups")) == {"train-g1-1"}
        (group,) = api.of("podgroups").values()
        assert group["spec"]["schedulingPolicy"]["gang"]["minCount"] == len(sizes[1])
        assert max(Counter(api.created("pods")).values()) <= 3
        if not is_killed:
            assert number > 10
            return


def killing_at(number: int) -> Callable[[Request], None]:
    requests: Iterator[int] = itertools.count()

    def kill(_request: Request) -> None:
        if next(requests) == number:
            raise Killed

    return kill
