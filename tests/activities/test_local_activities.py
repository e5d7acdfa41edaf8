"""Local activities run in threads of the worker, for a moment each."""

from __future__ import annotations

import inspect

from temporalio import activity

from activities.local_activities import LocalActivities


def test_a_cancelled_one_raises_nothing_in_the_thread_that_it_may_have_left() -> None:
    for function in LocalActivities().all():
        definition = activity._Definition.from_callable(function)  # no public way to the option
        assert definition is not None
        assert not inspect.iscoroutinefunction(function)
        assert definition.no_thread_cancel_exception
