"""Promises that `make test` shows on the fake cluster; `make test-long` shows them with real processes too.

A row is here if other rows of its file lead real agents through the same part of the local backend. Each
table of names says which these are. A row that is listed costs half a second of a processor or more.
"""

from __future__ import annotations

from collections.abc import Mapping

WHOLE_FILES = ("test_queue.py", "test_prechecks.py", "test_members.py")
"""These files take a minute with real processes."""

STANDBYS = (
    "test_the_same_pod_stands_by_however_often_it_is_asked_for",
    "test_a_pod_stands_by_no_more_once_its_slot_is_not_named",
    "test_a_start_ends_the_pods_that_still_stand_by",
    "test_no_pod_stands_by_where_there_is_no_room",
    "test_a_pod_on_a_node_that_is_isolated_stands_by_no_more",
    "test_a_slot_does_not_get_a_pod_whose_node_was_isolated",
    "test_a_pod_whose_node_is_lost_stands_by_no_more",
    "test_a_job_that_waits_for_places_comes_before_a_pod_that_stands_by",
    "test_a_pod_stands_by_while_all_others_go_on",
)
"""Quick: a pod is given to its slot, and ends with its job. The placer that decides the rest has
quick tests of its own (test_placer.py)."""

SPARES = (
    "test_a_spare_goes_on_standing_by_over_a_start_that_needs_no_pod",
    "test_a_spare_on_a_node_to_avoid_is_not_taken",
    "test_a_spare_is_checked_before_anything_breaks",
    "test_no_spare_stands_by_once_none_is_named",
    "test_no_spare_is_left_of_a_job_that_is_gone",
    "test_a_late_worker_makes_no_spare",
    "test_a_spare_gives_way_to_a_restarted_job_that_has_no_other_place",
    "test_a_new_job_waits_beside_a_spare",
)
"""Quick: a spare takes the place of a pod, or stands by for one slot."""

STOPS = (
    "test_only_the_named_slots_are_stopped",
    "test_the_processes_of_the_generation_itself_are_left_alone",
    "test_a_slot_on_a_node_proven_lost_counts_as_stopped",
    "test_an_end_with_grace_can_be_asked_of_a_whole_job",
    "test_a_later_run_of_a_gone_job_is_refused_nothing",
    "test_leftovers_names_the_jobs_that_have_anything",
)
"""Quick: a stop at once, one with grace, one without an answer, evidence, and the end of a job with its
leftovers."""

PLACES = (
    "test_a_waiting_order_may_ask_for_less",
    "test_pods_of_slots_not_named_are_removed",
    "test_what_runs_on_a_node_goes_on_when_it_is_isolated",
    "test_restarted_jobs_are_served_first_then_priority_then_the_order_of_asking",
    "test_a_waiting_order_is_served_when_there_is_room",
)
"""Quick: new pods for all slots and for some, an order without room, isolated nodes and devices. The order
of the queue is decided by the placer."""

STARTS = (
    "test_a_slot_that_runs_the_generation_is_left_alone",
    "test_a_start_that_ended_since_is_still_a_start",
    "test_pods_show_what_their_processes_were_told",
    "test_nothing_is_set_aside_while_ranks_of_the_generation_run",
    "test_no_checkpoint_is_listed_nor_set_aside_where_no_agent_answers",
    "test_a_checkpoint_that_was_set_aside_is_told_no_more",
)
"""Quick: starts, restarts in place, commands that fail; checkpoints that are listed and resumed. Those that
are set aside are in local/test_one_request.py."""

FENCES = ("test_without_a_place_for_the_fence_only_proof_counts",)
"""Quick: a fence that holds at once, by proof, and once its time is over."""

GENERATIONS = ("test_generations_stay_known_after_the_job_is_gone",)
"""Quick: an order of an older generation, and a job that begins above a fence."""

OBSERVING = (
    "test_observe_returns_when_its_time_has_come",
    "test_the_clock_never_goes_back",
    "test_a_silent_slot_is_shown_as_last_heard_of",
    "test_the_same_cursor_brings_the_same_facts_in_the_same_order",
)
"""Quick: news of ranks and nodes, a cluster out of reach."""

REPAIRS = (
    "test_a_new_fault_is_asked_anew_whether_it_heals",
    "test_a_failed_heal_stays_failed",
    "test_check_finds_what_observe_told_and_only_while_it_is_there",
)
"""Quick: faults of devices that are reported, and devices that are healed."""

OTHER_BOOKS = (
    "test_a_job_that_says_which_books_it_is_in_is_refused_nothing",
    "test_an_order_of_a_generation_never_given_is_refused",
    "test_an_adoption_changes_nothing_for_a_job_of_these_books",
    "test_after_an_adoption_the_fence_takes_its_time_once",
)
"""Quick: a job of another database is refused every verb."""

RUNS_OF_A_JOB = (
    "test_a_run_that_was_overtaken_may_end_the_job_only_as_its_owner",
    "test_leftovers_are_ended_in_the_name_of_the_run_that_asked_last",
)
"""Quick: a run that was overtaken owns the job again with a new key."""

CLEARING = (
    "test_a_new_pod_is_made_so_long_after_the_old_processes_though_clearing_lasts",
    "test_a_place_that_is_cleared_in_time_is_not_waited_for_any_longer",
    "test_the_node_whose_place_is_still_being_cleared_takes_the_new_pod",
    "test_what_is_being_cleared_is_cleared_whatever_comes_and_nothing_is_left",
    "test_a_node_lost_while_its_place_is_being_cleared_disturbs_nothing",
)
"""Quick: a new pod and the end of a job wait for a place that is being cleared, and its devices do not."""

ROWS: Mapping[str, tuple[str, ...]] = {
    "contract/test_spares.py": SPARES,
    "contract/test_standbys.py": STANDBYS,
    "contract/test_stops.py": STOPS,
    "contract/test_places.py": PLACES,
    "contract/test_starts.py": STARTS,
    "contract/test_observing.py": OBSERVING,
    "contract/test_repairs.py": REPAIRS,
    "contract/test_fences.py": FENCES,
    "contract/test_generations.py": GENERATIONS,
    "test_other_books.py": OTHER_BOOKS,
    "test_runs_of_a_job.py": RUNS_OF_A_JOB,
    "local/test_clearing.py": CLEARING,
}


def is_long(file: str, test: str) -> bool:
    """Whether the row of the local backend is left to the long tests; `file` is a path in tests/backends."""
    return file in WHOLE_FILES or test in ROWS.get(file, ())
