"""Whether a worker can work: `/ready` beside its page of metrics, for a readiness probe."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

PATH = "/ready"
STARTING = "the worker is starting"

Application = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]
"""As WSGI calls it."""


@dataclass(slots=True)
class Readiness:
    """Why a worker is not ready; empty once it polls and its Temporal server answers."""

    problem: str = STARTING

    def with_ready_path(self, page: Application) -> Application:
        """The page with `/ready`: 200, or 503 with the problem."""

        def application(
            environ: dict[str, Any], start_response: Callable[..., Any]
        ) -> Iterable[bytes]:
            if environ.get("PATH_INFO") != PATH:
                return page(environ, start_response)
            status = "503 Service Unavailable" if self.problem else "200 OK"
            start_response(status, [("Content-Type", "text/plain; charset=utf-8")])
            return [f"{self.problem or 'ready'}\n".encode()]

        return application
