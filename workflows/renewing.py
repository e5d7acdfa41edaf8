"""When a run ends so that another one goes on, and with which version of workers."""

from __future__ import annotations

from temporalio import workflow

from workflows import options


def should_renew() -> bool:
    """Whether the server suggests a new run, or workers of another version are the current ones."""
    info = workflow.info()
    return info.is_continue_as_new_suggested() or info.is_target_worker_deployment_version_changed()


def is_full() -> bool:
    """The same, for a workflow that answers many: its history stays short."""
    return should_renew() or workflow.info().get_current_history_length() > options.EVENTS_KEPT
