"""The use of devices in the heartbeat of a watch, and on the page of `status`."""

from __future__ import annotations

import json
from dataclasses import replace

from everstep.chronicle import views
from everstep.chronicle.shapes import with_glance
from everstep.cli import status_page
from everstep.core.seeing.glance import DEVICES_OF_MOST, glance
from everstep.core.world import DeviceUse
from tests.cli.jobs.test_tables import drawn
from tests.core.seeing.test_glance import OBSERVATION, ORDER, WATCH
from tests.support.builders import pod, running, watch_order

TWO = (DeviceUse(0, 97.4, 71840.0, 81920.0), DeviceUse(1, 3.0, 1024.0, 81920.0))


def test_status_shows_the_use_and_the_memory_of_each_device() -> None:
    pods = (pod(0, step=7)._replace(device_use=TWO), pod(1, step=7))
    heartbeat = glance(ORDER, WATCH, replace(OBSERVATION, pods=pods))
    status = with_glance(views.status(running().state), json.loads(json.dumps(heartbeat)))
    [row] = status["device_use"]
    assert (row["slot"], row["node"]) == (0, pods[0].node)
    assert row["devices"][1] == {
        "index": 1,
        "percent": 3.0,
        "memory_mb": 1024.0,
        "memory_total_mb": 81920.0,
    }
    *_, heading, printed = drawn(status_page.status(status), 120)
    assert heading.split()[2:] == ["DEVICES", "USE", "(%)", "MEMORY", "(GB)"]
    assert printed.split()[2:] == ["0", "1", "97", "3", "70.2", "1.0", "of", "80.0"]


def test_what_a_device_does_not_show_is_unknown() -> None:
    uses = (DeviceUse(0, None, 1024.0, None), DeviceUse(3, 5.0, None, None))
    pods = (pod(0, step=7)._replace(device_use=uses),)
    heartbeat = glance(ORDER, WATCH, replace(OBSERVATION, pods=pods))
    status = with_glance(views.status(running().state), heartbeat)
    *_, printed = drawn(status_page.status(status), 120)
    assert printed.split()[2:] == ["0", "3", "?", "5", "1.0", "?"]


def test_devices_that_show_nothing_are_left_out() -> None:
    heartbeat = glance(ORDER, WATCH, OBSERVATION)
    assert heartbeat["device_use"] is None
    page = drawn(status_page.status(views.status(running().state)), 120)
    assert not [line for line in page if "MEMORY" in line]


def test_a_silent_pod_shows_none() -> None:
    silent = pod(0, step=7)._replace(device_use=TWO, silent_since=140.0)
    assert glance(ORDER, WATCH, replace(OBSERVATION, pods=(silent,)))["device_use"] is None


def test_of_a_large_job_the_slots_are_shown_whose_devices_are_used_least() -> None:
    slots = range(DEVICES_OF_MOST * 4)
    pods = tuple(
        pod(slot, step=7)._replace(device_use=(DeviceUse(0, float(slot % 50), 1.0, 2.0),) * 8)
        for slot in slots
    )
    heartbeat = glance(watch_order(*slots), WATCH, replace(OBSERVATION, pods=pods))
    rows = heartbeat["device_use"]
    assert isinstance(rows, list)
    assert [row["slot"] for row in rows] == sorted([*range(8), *range(50, 58)])
    assert len(json.dumps(rows)) < 16_384
