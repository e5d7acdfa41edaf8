"""The IDs under which the lists of the Temporal UI show a restart."""

from __future__ import annotations

import pytest

from everstep.core import names


@pytest.mark.parametrize(
    ("node", "key"),
    [
        ("gpu-07", "main/recovery-12-pod-device_fatal-gpu-07"),
        (None, "main/recovery-12-pod-device_fatal"),
        ("a node/of\nsomebody", "main/recovery-12-pod-device_fatal-a_node_of_somebody"),
    ],
)
def test_the_id_of_a_restart_tells_its_story(node: str | None, key: str) -> None:
    key_of_recovery = names.recovery_key(
        phase="main", n=12, level="pod", cls="device_fatal", node=node
    )
    assert (key_of_recovery, names.recovery_id("demo", key_of_recovery)) == (key, f"demo/{key}")


def test_what_does_not_fit_into_an_id_is_cut_behind_the_number() -> None:
    longest = "ä" * (names.JOB_ID_MOST // 2)
    assert names.refused(longest) is None
    key = names.recovery_key(
        phase="p" * 40, n=99_999, level="operator_online", cls="device_fatal", node="n" * 253
    )
    cut = names.recovery_id(longest, key)
    assert len(cut.encode()) == names.ID_MOST
    assert "/recovery-99999-" in cut


@pytest.mark.parametrize(
    "job", ["a/main/recovery-1-pod-node", "janitor/local", "quarantine/local", "x" * 941]
)
def test_an_id_that_ours_would_meet_is_refused(job: str) -> None:
    assert (names.refused(job) or "").startswith("id: ")


@pytest.mark.parametrize("job", ["demo", "team/recovery", "recovery-1", "janitor", "my-janitor/x"])
def test_other_ids_are_accepted(job: str) -> None:
    assert names.refused(job) is None


def test_a_restart_has_more_ids_than_one() -> None:
    key = names.recovery_key(phase="main", n=3, level="pod", cls="node", node="n2")
    second = names.next_key(key)
    assert second == "main/recovery-3~2-pod-node-n2"
    assert names.next_key(second) == "main/recovery-3~3-pod-node-n2"
    longest = "j" * names.JOB_ID_MOST
    keys = [f"{'p' * 40}/recovery-9999{end}-pod" for end in ("", "~2", "~9")]
    assert len({names.recovery_id(longest, each) for each in keys}) == 3
