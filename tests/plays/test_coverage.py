"""The plays that are left out: nothing that any play shows is lost with them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.plays import cases, scenarios
from tests.plays.coverage import Coverage, fewest
from tests.plays.scenarios import REAL, Cluster

TABLES = pytest.mark.parametrize(
    "table", [scenarios.COVERAGE, cases.COVERAGE], ids=lambda table: table.title
)
CLUSTERS: tuple[Cluster, ...] = ("machine", "pods")
VERBS = ("place", "start", "stop", "isolate", "remove", "heal", "stand", "take", "release")
FAULTS = ("crash", "node", "device", "device_fatal", "device_user", "hang", "storage")


@TABLES
def test_what_any_play_shows_is_shown_by_one_that_is_played(table: Coverage) -> None:
    assert table.missing_from(table.needed) == frozenset()


@TABLES
def test_a_play_is_left_out_only_if_others_show_all_of_it(table: Coverage) -> None:
    for name in table.shows.keys() - table.needed:
        assert table.shows[name] <= table.features_of(table.needed)


@TABLES
def test_no_play_is_played_without_something_of_its_own(table: Coverage) -> None:
    for name in table.needed - table.always:
        assert table.missing_from(table.needed - {name}), name


@pytest.mark.parametrize("cluster", CLUSTERS)
def test_each_cluster_shows_each_verb_and_each_class_of_fault(cluster: Cluster) -> None:
    verbs = {text for text in scenarios.COVERAGE.features if text.startswith(f"{cluster}: verb: ")}
    words = [text.split() for text in verbs]
    assert {word[2] for word in words} >= {*VERBS}
    assert {word[4] for word in words} >= {*FAULTS}


def test_of_what_two_show_alike_the_cheaper_one_is_played() -> None:
    shows = {"a": frozenset("12"), "b": frozenset("12"), "c": frozenset("13")}
    assert fewest(shows, {"a": 1, "b": 9, "c": 5}) == {"a", "c"}
    assert fewest(shows, {"a": 9, "b": 1, "c": 5}) == {"b", "c"}
    assert fewest(shows, {"a": 1, "b": 9, "c": 5}, always=frozenset("b")) == {"b", "c"}


def test_what_only_one_scenario_shows_keeps_it_on_both_clusters() -> None:
    """No other one isolates a node for a device whose user is at fault."""
    text = "verb: isolate for device_user"
    assert [s.path.stem for s in REAL if text in scenarios.of_cluster(s)] == [
        "device_of_user_does_not_heal"
    ]
    played = {*scenarios.COVERAGE.needed}
    assert played >= {f"device_of_user_does_not_heal ({cluster})" for cluster in CLUSTERS}


@TABLES
def test_the_printed_table_names_every_play_once(table: Coverage) -> None:
    def names_after(how: str) -> Iterator[str]:
        for line in table.lines():
            if line.startswith(f"  {how}"):
                yield line.removeprefix(f"  {how}").strip().partition(": ")[0]

    assert [*names_after("left out")] == sorted(table.shows.keys() - table.needed)
    assert [*names_after("played")] == sorted(table.needed)
