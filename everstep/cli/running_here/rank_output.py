"""What the ranks of a job print, shown by `run` between the events of the job."""

from __future__ import annotations

from everstep.cli.jobs.logs import LogScreen, RankOutput
from everstep.cli.jobs.watching import JobScreen
from everstep.client.jobs.glances import Glance
from everstep.core.spec import JobSpec


async def with_rank_output(screen: JobScreen, job_id: str, spec: JobSpec) -> JobScreen:
    """The screen, with the output of the job's ranks from now on."""
    world = max(phase.nodes * phase.processes_per_node for phase in spec.phases)
    lines = LogScreen(
        is_json=False,
        is_raw=False,
        has_headings=False,  # the restarts are printed between
        has_times=False,
        ranks=set(range(world)),
        is_shared=True,
    )
    return ScreenWithRankOutput(screen, await RankOutput.from_now(job_id), lines)


class ScreenWithRankOutput(JobScreen):
    """A screen that prints what the ranks printed before it shows the next look at the job."""

    def __init__(self, screen: JobScreen, output: RankOutput, lines: LogScreen) -> None:
        self._screen = screen
        self._output = output
        self._lines = lines

    async def update(self, glance: Glance) -> None:
        """The output first: a job that has ended prints nothing afterwards."""
        async for text in self._output.texts(self._lines, whole=not glance.has_ended):
            self._screen.print(text)
        await self._screen.update(glance)

    def print(self, text: str) -> None:
        self._screen.print(text)

    def close(self) -> None:
        self._screen.close()

    def abandon(self) -> None:
        self._screen.abandon()
