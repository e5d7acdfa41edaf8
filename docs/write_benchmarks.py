"""Writes docs/benchmarks.md from the results of a comparison: `make docs`. A test says if it is stale.

Every figure of the page is in that file, benchmarks/peers/results.json. What belongs here is which rows are
set beside each other, and what a reader has to know about each.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.peers.results import PLACE, Measurement, Results
from docs.markdown import table

PAGE = Path(__file__).with_name("benchmarks.md")
OURS = "everstep"
ALONE = 0.8
"""A pause shorter than this share of the whole: some rank made steps meanwhile."""
PEERS = ("torchrun", "NVRx 0.4.1", "NVRx 0.7.0", "torchft", "JobSet")

INTRODUCTION = """\
# Everstep beside other launchers

The same faults, the same script, the same machine, in turns. `make bench-peers` measures and leaves
[results.json](../benchmarks/peers/results.json), `make docs` writes this page from it; a test compares.
What else Everstep costs: [benchmarks](../benchmarks/README.md).
"""

HOW_TO_READ = """\
Seconds from the fault until a new process has made a step together with the other rank; on Kubernetes until
all ranks have begun. Median (least to most, number of faults). Ratio: the quickest peer to ours, of medians;
below 1 it is quicker than Everstep. With torchft one rank makes steps alone until the other one is back: the
pause before these, and its ratio to ours, are named as well. Steps again: those made before the fault and
once more after it.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A line of the table."""

    ours: str  # the row of our measurements
    theirs: str  # of the peers'
    title: str
    caveat: str
    shows_steps: bool = False  # those that were made again
    peers: Sequence[str] = ("torchrun", "NVRx 0.4.1", "NVRx 0.7.0", "torchft")


IN_PODS = ("JobSet",)
ROWS = (
    Row(
        ours="crash",
        theirs="crash",
        title="a rank is killed; `prewarm: [torch]`",
        caveat="a helper process on each node has torch in memory, imported ahead; the peers import it again",
    ),
    Row(
        ours="crash_auto",
        theirs="crash",
        title="the same, `prewarm: auto`, the default",
        caveat="once the helper is ready, which finds out from the running ranks what to import",
    ),
    Row(
        ours="crash_off",
        theirs="crash",
        title="the same, `prewarm: off`",
        caveat="nearly all of it is the import of torch, with every launcher",
    ),
    Row(
        ours="crash_process",
        theirs="crash",
        title="the same, the other rank stays (level `process`)",
        shows_steps=True,
        caveat="the script uses the train library; with torchft it uses that. Checkpoints are 10 steps apart",
    ),
    Row(
        ours="hang",
        theirs="hang",
        title="a rank is stopped; limit 5 s",
        caveat="of each, 5 s are the limit; torchrun has none and waits 30 s for the stopped rank's end",
    ),
    Row(
        ours="controller",
        theirs="controller",
        title="a rank is killed, then the controller in mid-recovery, which starts again at once",
        caveat="worker, launcher, lighthouse; the benchmark is the supervisor that starts it again. "
        "A dead worker of ours shows after 2 s",
    ),
    Row(
        ours="node",
        theirs="node",
        title="one of two nodes is lost, another one stands by",
        caveat="our cluster reports it at once, and the spare pod has torch imported; the others find out by "
        "themselves, and their launcher on the other node starts at once",
    ),
    Row(
        ours="kept",
        theirs="kept",
        title="a rank is killed; 100 MB of state, steps of 0.5 s; snapshots",
        shows_steps=True,
        caveat="to the end of the first new step of 0.5 s; torchft copies from the other rank, torchrun and "
        "NVRx load a checkpoint, one every 10 steps",
    ),
    Row(
        ours="pods_container",
        theirs="pods_container",
        title="Kubernetes: a container is killed, its pod is replaced",
        caveat="to the start of the ranks; no image is pulled",
        peers=IN_PODS,
    ),
    Row(
        ours="pods_controller",
        theirs="pods_controller",
        title="Kubernetes: the same, and the controller, which starts again at once",
        caveat="JobSet without leader election, with which a lease of 15 s has to run out",
        peers=IN_PODS,
    ),
    Row(
        ours="pods_node",
        theirs="pods_node",
        title="Kubernetes: a node and its object are gone",
        caveat="JobSet waits until Kubernetes collects the pod of a node that is gone",
        peers=IN_PODS,
    ),
)

NOT_COMPARED = (
    "NCCL and GPUs: there are none here. All ranks use gloo on the CPU; what a device adds to a start is the "
    "same under every launcher except where a process stays.",
    "Many ranks: two processors run all of it. What Everstep costs at 1,000 pods is in "
    "[benchmarks](../benchmarks/README.md).",
    "JobSet with launchers of one machine, and those in pods: they do different parts of the work, and are "
    "used together. A JobSet whose pods run torchrun takes the time of both.",
    "NVRx's restart inside a process, its checkpoints in memory, JobSet's alpha restart in place, torchft "
    "with more than one rank in a group: not tried.",
    "DLRover, Ray Train, Volcano, Kubeflow Trainer, SkyPilot, Slurm: not run.",
)


def page(results: Results | None = None) -> str:
    of = Results.read(PLACE) if results is None else results
    sections = (_table(of), _settings(of), _run(of), _not_compared(of))
    return "\n".join([INTRODUCTION, *("\n".join(section) for section in sections)])


# -- The table --------------------------------------------------------------------------------------


def _table(results: Results) -> Iterator[str]:
    yield HOW_TO_READ
    heads = ("fault", "Everstep", *PEERS, "ratio", "caveat")
    yield from table(heads, _lines(results))
    yield ""


def _lines(results: Results) -> Iterator[Iterator[str]]:
    previous = ""
    for row in ROWS:
        yield _line(results, row, is_as_above=row.theirs == previous)
        previous = row.theirs


def _line(results: Results, row: Row, *, is_as_above: bool) -> Iterator[str]:
    yield row.title
    yield f"**{_cell(results, row.ours, OURS, shows_steps=row.shows_steps)}**"
    for peer in PEERS:
        if peer not in row.peers:
            yield "–"
        elif is_as_above and not row.shows_steps:
            yield "as above"
        else:
            yield _cell(results, row.theirs, peer, shows_steps=row.shows_steps)
    yield _ratio(results, row)
    yield row.caveat


def _cell(results: Results, row: str, launcher: str, *, shows_steps: bool) -> str:
    """The figures, or the reason why there are none. Raises LookupError where the file has neither."""
    measured = results.of(row, launcher)
    if not measured:
        reason = results.reason(row, launcher)
        if reason is None:
            raise LookupError(
                f"{launcher}, {row}: neither a measurement nor a reason why there is none"
            )
        return f"not run here: {reason}"
    took = _took(measured)
    never = len(measured) - len(took)
    limit = f"not within {max(one.given_up_s for one in measured):g} s"
    if not took:
        return "; ".join([f"{limit} ({never} of {len(measured)})", *_alone(measured)])
    spread = f"{_figure(min(took))} to {_figure(max(took))}, " if len(took) > 1 else ""
    cell = f"{_figure(statistics.median(took))} ({spread}{len(took)})"
    notes = [f"{never} of {len(measured)} {limit}"] if never else []
    return "; ".join([cell, *notes, *_notes(measured, shows_steps=shows_steps)])


def _notes(measured: Sequence[Measurement], *, shows_steps: bool) -> Iterator[str]:
    """The steps that were made again; the time without any, where one rank goes on alone."""
    lost = [one.lost_steps for one in measured if one.lost_steps is not None]
    if lost and shows_steps:
        yield f"{statistics.median(lost):g} steps again"
    pauses = [one.paused_s for one in measured if one.paused_s is not None]
    if pauses and statistics.median(pauses) < ALONE * statistics.median(_took(measured)):
        yield f"pause {_figure(statistics.median(pauses))}"


def _alone(measured: Sequence[Measurement]) -> Iterator[str]:
    pauses = [one.paused_s for one in measured if one.paused_s is not None]
    if pauses and max(pauses) < ALONE * measured[0].given_up_s:
        yield f"one rank goes on alone after {_figure(statistics.median(pauses))}"


def _took(measured: Sequence[Measurement]) -> list[float]:
    return [one.took_s for one in measured if one.took_s is not None]


def _figure(seconds: float) -> str:
    return f"{seconds:.2f}" if seconds < 10 else f"{seconds:.1f}"


def _ratio(results: Results, row: Row) -> str:
    ours = results.of(row.ours, OURS)
    peers = {peer: results.of(row.theirs, peer) for peer in row.peers}
    whole = _best(_took(ours), {peer: _took(of) for peer, of in peers.items()})
    alone = _best(_standstills(ours), {peer: _standstills(of) for peer, of in peers.items()})
    (ratio, peer), (ratio_alone, peer_alone) = whole, alone
    if not peer and not peer_alone:
        return "–"
    words = [f"{ratio:.1f} ({peer})"] if peer else []
    if ratio_alone < ALONE * ratio or not peer:
        words.append(f"pause {ratio_alone:.1f} ({peer_alone})")
    return "; ".join(words)


def _best(ours: Sequence[float], theirs: Mapping[str, Sequence[float]]) -> tuple[float, str]:
    """The quickest peer's median to ours, and its name; no name: there is none, or nothing of ours."""
    medians = [(statistics.median(times), peer) for peer, times in theirs.items() if times]
    if not ours or not medians:
        return math.inf, ""
    median, peer = min(medians)
    return median / statistics.median(ours), peer


def _standstills(measurements: Sequence[Measurement]) -> list[float]:
    """The times in which no rank made a step; of pods the times until all had begun."""
    times = [one.took_s if one.paused_s is None else one.paused_s for one in measurements]
    return [
        time
        for time, one in zip(times, measurements, strict=True)
        if time is not None and (one.took_s is not None or time < ALONE * one.given_up_s)
    ]


# -- Where it comes from ----------------------------------------------------------------------------


def _settings(results: Results) -> Iterator[str]:
    yield "## Settings\n"
    yield "Each launcher as it is best at here. Ranks, script"
    yield "([train.py](../benchmarks/peers/train.py)) and faults are the same: two ranks, gloo, an all-reduce"
    yield "of 1,000 numbers and 50 ms of sleep a step.\n"
    yield from table(("launcher", "settings"), results.settings.items())
    yield ""


def _run(results: Results) -> Iterator[str]:
    machine = results.machine
    yield "## The run\n"
    loads = [one.load for one in results.measured]
    spread = f", {min(loads):.1f} to {max(loads):.1f} at the faults" if loads else ""
    rows = {
        "begun": f"{results.date}, took {results.took_s / 60:.1f} minutes",
        "machine": f"{machine['cores']} cores ({machine['processor']}), {machine['memory_gb']} GB, "
        f"{machine['system']}, Python {machine['python']}",
        "load": f"{machine['load_at_start']:g} at the start{spread}",
        "versions": ", ".join(
            name if name.endswith(version) else f"{name} {version}"
            for name, version in results.versions.items()
        ),
        "starts of a process that came to nothing": _wasted(results),
        "order": f"{len(results.order)} turns, a start and some faults each, by the seed {results.seed}",
    }
    yield from table(("", ""), rows.items())
    yield "\nAgain, as root for the rows of Kubernetes:\n"
    yield f'    make bench-peers PYTHON312=python3.12 ARGS="--seed {results.seed}"    # 22 minutes at most'
    yield "    make docs\n"
    yield 'Less of it, which writes nothing: `make bench-peers ARGS="--rounds 1 --rows crash,hang"`.\n'


def _wasted(results: Results) -> str:
    counts = {
        launcher: sum(one.wasted_starts for one in results.measured if one.launcher == launcher)
        for launcher in (OURS, *PEERS)
    }
    return ", ".join(f"{name} {count}" for name, count in counts.items() if count) or "none"


def _not_compared(results: Results) -> Iterator[str]:
    yield "## What is not compared, and why\n"
    for reason in NOT_COMPARED:
        yield f"- {reason}"
    for one in dict.fromkeys(results.not_run):
        some = (
            f" in some turns, after {n} faults"
            if (n := len(results.of(one.row, one.launcher)))
            else ""
        )
        yield f"- {one.launcher}, row `{one.row}`{some}: {one.reason}."
    few = min((len(results.of(row.ours, OURS)) for row in ROWS), default=0)
    yield f"- What happens rarely: each row of ours has {few} faults or more. That is few, on a machine whose"
    yield "  speed varies."
    yield ""


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
