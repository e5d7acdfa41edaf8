"""The command `simulate`: what a restart policy is worth, before a job runs under it."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from everstep.cli.durations import parse_duration
from everstep.cli.output import AsJson, Page, show
from everstep.cli.tables import Column, table
from everstep.client.documents.documents import read
from everstep.client.exit_codes import Exit, Failed
from everstep.core.spec import JobSpec
from everstep.dialects import registry

if TYPE_CHECKING:
    from everstep.simulate.experiment import Experiment
    from everstep.simulate.jobs import JobNumbers, Library
    from everstep.simulate.policies import PolicyUnderTest
    from everstep.simulate.trace import Trace

Value = dict[str, Any]

NODES_MOST, DAYS_MOST, SEEDS_MOST = 20_000, 400.0, 1_000
STEP_S_MOST, SECONDS_MOST = 3_600.0, 86_400.0


Jobs = Annotated[
    list[str], typer.Argument(metavar="JOB...", help="Job documents; several share the cluster.")
]
Nodes = Annotated[
    int | None,
    typer.Option(min=1, max=NODES_MOST, help="Nodes of the job, whatever JOB says."),
]
Days = Annotated[float, typer.Option(min=0.01, max=DAYS_MOST, help="How long it runs.")]
Seed = Annotated[int, typer.Option(help="The first seed; the same one, the same faults.")]
Seeds = Annotated[int, typer.Option(min=1, max=SEEDS_MOST, help="So many seeds from there on.")]
ProfileName = Annotated[
    str, typer.Option(help="How often things break: mature, good, reference, research or bad.")
]
TraceFile = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="Real outages: a list (CSV), or what `report --since 90d --json` prints.",
    ),
]
FromDay = Annotated[
    float, typer.Option(min=0.0, help="Begin at this day of the outages in --trace.")
]
Spares = Annotated[
    str | None,
    typer.Option(metavar="N[,N]", help="Spare nodes; several are compared. [default: enough]"),
]
CheckpointEvery = Annotated[
    str, typer.Option(metavar="AGE[,AGE]", help="Between checkpoints; several are compared.")
]
PolicyNames = Annotated[
    str, typer.Option(metavar="NAME,...", help="Policies that meet the same faults.")
]
StepS = Annotated[float, typer.Option(min=0.01, max=STEP_S_MOST, help="Seconds of a step.")]
WriteS = Annotated[
    float, typer.Option(min=0.0, max=SECONDS_MOST, help="For so long a checkpoint stops training.")
]
StartS = Annotated[
    float, typer.Option(min=0.0, max=SECONDS_MOST, help="Until all ranks have started.")
]
LoadS = Annotated[
    float, typer.Option(min=0.0, max=SECONDS_MOST, help="From there to the first step.")
]
PodS = Annotated[float, typer.Option(min=0.0, max=SECONDS_MOST, help="Until a new pod is ready.")]
Libraries = Annotated[
    str,
    typer.Option(
        "--library",
        metavar="NAME[,NAME]",
        help="What the script uses of everstep.train: none, snapshots or levels; several are compared.",
    ),
]
SnapshotEvery = Annotated[
    str, typer.Option(metavar="AGE", help="Between snapshots, where --library has any.")
]
SnapshotS = Annotated[
    float, typer.Option(min=0.0, max=SECONDS_MOST, help="For so long a snapshot stops training.")
]
RestoreS = Annotated[
    float,
    typer.Option(
        min=0.0, max=SECONDS_MOST, help="In place of --load-s where ranks begin from snapshots."
    ),
]
RebuildS = Annotated[
    float,
    typer.Option(
        min=0.0, max=SECONDS_MOST, help="In place of --load-s where ranks outlive a fault."
    ),
]
Output = Annotated[
    Path | None,
    typer.Option("--output", "-o", metavar="FILE", help="Write FILE.html or FILE.json."),
]


def simulate(
    job: Jobs,
    *,
    nodes: Nodes = None,
    days: Days = 30.0,
    seed: Seed = 7,
    seeds: Seeds = 1,
    profile: ProfileName = "reference",
    trace: TraceFile = None,
    from_day: FromDay = 0.0,
    spares: Spares = None,
    checkpoint_every: CheckpointEvery = "5m",
    policies: PolicyNames = "document,oracle",
    step_s: StepS = 5.0,
    write_s: WriteS = 0.5,
    start_s: StartS = 30.0,
    load_s: LoadS = 30.0,
    pod_s: PodS = 120.0,
    library: Libraries = "none",
    snapshot_every: SnapshotEvery = "30s",
    snapshot_s: SnapshotS = 0.1,
    restore_s: RestoreS = 5.0,
    rebuild_s: RebuildS = 10.0,
    output: Output = None,
    as_json: AsJson = False,
) -> None:
    """Try a job's restart policy on a made-up cluster, in virtual time, before it runs.

    Nodes break, hang and come back as published numbers or your own outages say; the decisions are those
    of a real job. It prints the share of time that trains, what the rest was lost to, and how far the policy
    is from an oracle.
    """
    from everstep.simulate.jobs import JobNumbers

    check_output(output, as_json=as_json)
    compared = _compared(checkpoint_every, spares, library)
    numbers = JobNumbers(
        step_s=step_s,
        checkpoint_s=compared.checkpoints_s[0],
        write_s=write_s,
        start_s=start_s,
        load_s=load_s,
        pod_s=pod_s,
        library=compared.libraries[0],
        snapshot_every_s=_age("--snapshot-every", snapshot_every),
        snapshot_s=snapshot_s,
        restore_s=restore_s,
        rebuild_s=rebuild_s,
    )
    experiment = _experiment(
        job, numbers, policies=policies, profile=profile, trace=trace, nodes=nodes
    )
    experiment = replace(
        experiment,
        days=days,
        trace=outages_between(experiment.trace, from_day, days),
        seeds=range(seed, seed + seeds),
        spares=compared.only_spares,
    )
    _simulate(experiment, compared, output, as_json=as_json)


def _simulate(
    experiment: Experiment, compared: Compared, output: Path | None, *, as_json: bool
) -> None:
    """Simulate, and print or write the results."""
    value = _value(experiment, compared, has_curves=output is not None)
    if output is None:
        show(value, simulation_page, as_json=as_json)
    else:
        _write(output, value)


def _experiment(
    jobs: Sequence[str],
    numbers: JobNumbers,
    *,
    policies: str,
    profile: str,
    trace: Path | None,
    nodes: int | None,
) -> Experiment:
    from everstep.simulate.experiment import Experiment
    from everstep.simulate.fault_classes import PROFILES
    from everstep.simulate.trace import BadTrace, read_trace

    if nodes is not None and len(jobs) > 1:
        raise Failed(
            Exit.USAGE, "--nodes is for one job; several have the nodes of their documents"
        )
    if profile not in PROFILES:
        raise Failed(Exit.USAGE, f"--profile {profile}: try one of {', '.join(PROFILES)}")
    try:
        outages = None if trace is None else read_trace(trace)
    except BadTrace as error:
        raise Failed(Exit.USAGE, str(error)) from None
    return Experiment(
        jobs=_specs(jobs),
        numbers=numbers,
        nodes=nodes,
        profile=PROFILES[profile],
        trace=outages,
        policies=tuple(_policy(name) for name in policies.split(",")),
    )


def outages_between(trace: Trace | None, from_day: float, days: float) -> Trace | None:
    """The outages of so many days from there on."""
    if trace is None and from_day:
        raise Failed(Exit.USAGE, "--from-day is a day of --trace")
    return trace and trace.between(from_day, from_day + days)


def _specs(files: Sequence[str]) -> tuple[JobSpec, ...]:
    """The jobs of these files, each with a name of its own."""
    specs = [
        registry.compile_document(registry.read_text(read(file)), needs_command=False)
        for file in files
    ]
    if len(specs) == 1:
        return tuple(specs)
    return tuple(replace(spec, name=f"{spec.name}-{n}") for n, spec in enumerate(specs, start=1))


def _policy(name: str) -> PolicyUnderTest:
    from everstep.simulate.policies import NAMES, policy_named

    try:
        return policy_named(name.strip())
    except KeyError:
        raise Failed(Exit.USAGE, f"--policies {name}: try some of {', '.join(NAMES)}") from None


def _age(option: str, text: str) -> float:
    """The time between two, which is no moment."""
    seconds = parse_duration(option, text)
    if not seconds:
        raise Failed(Exit.USAGE, f"{option} {text}: give more than 0 seconds, such as 5m")
    return seconds


def _count(option: str, text: str) -> int:
    if not re.fullmatch(r"\d{1,5}", text.strip()):
        raise Failed(Exit.USAGE, f"{option} {text}: give whole numbers, such as 0,2,8")
    return int(text)


def _library(text: str) -> Library:
    from everstep.simulate.jobs import LIBRARIES

    for library in LIBRARIES:
        if library == text.strip():
            return library
    raise Failed(Exit.USAGE, f"--library {text}: try some of {', '.join(LIBRARIES)}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """The values of the options that may have several."""

    checkpoints_s: Sequence[float]
    spares: Sequence[int]  # none: enough
    libraries: Sequence[Library]

    @property
    def only_spares(self) -> int | None:
        """None: enough, or several, which are compared in a table of their own."""
        return self.spares[0] if len(self.spares) == 1 else None

    @property
    def has_several(self) -> bool:
        return max(len(self.checkpoints_s), len(self.spares), len(self.libraries)) > 1


def _compared(checkpoint_every: str, spares: str | None, library: str) -> Compared:
    return Compared(
        checkpoints_s=[_age("--checkpoint-every", text) for text in checkpoint_every.split(",")],
        spares=[] if spares is None else [_count("--spares", text) for text in spares.split(",")],
        libraries=[_library(text) for text in library.split(",")],
    )


def _value(experiment: Experiment, compared: Compared, *, has_curves: bool) -> Value:
    from everstep.simulate.experiment import curves, results, what_if

    progress = _progress()
    rows = []
    if compared.has_several:
        rows = what_if(
            experiment,
            checkpoints_s=compared.checkpoints_s,
            spares=compared.spares or [experiment.spare_nodes],
            libraries=compared.libraries,
            progress=progress,
        )
    value = {
        **results(experiment, progress),
        "what_if": rows,
        "curves": curves(experiment, progress) if has_curves else [],
    }
    return {**value, "inputs": inputs_line(value)}


def _progress() -> Callable[[str], None]:
    if not sys.stderr.isatty():
        return lambda _text: None
    return lambda text: print(f"\r\x1b[K{text}", end="", file=sys.stderr, flush=True)


# -- pages --------------------------------------------------------------------------------------


def simulation_page(value: Value) -> Page:
    """The results as text: the inputs in a line, a row for each policy, then where time went."""
    if sys.stderr.isatty():
        print("\r\x1b[K", end="", file=sys.stderr)
    yield value["inputs"]
    yield ""
    yield table(value["policies"], POLICY_COLUMNS)
    for row in value["policies"]:
        yield ""
        yield f"{row['name']}: {row['about']}"
        lost = {name: row["lost"][cause] for cause, name in value["causes"].items()}
        parts = [f"{name} {share:.2%}" for name, share in lost.items() if share >= 0.00005]
        yield f"  lost to {', '.join(parts) or 'nothing'}"
        levels = ", ".join(f"{level} {count}" for level, count in row["levels"].items())
        yield f"  restarts by level: {levels or 'none'}"
    if value["what_if"]:
        yield ""
        yield table(value["what_if"], WHAT_IF_COLUMNS)


def inputs_line(value: Value) -> str:
    jobs = ", ".join(f"{job['name']} on {job['nodes']} nodes" for job in value["jobs"])
    rate = f"{value['faults_per_1000_node_days']:g} faults in 1,000 node-days"
    source = value["trace"] or f"profile {value['profile']}, {rate}"
    seeds = value["seeds"]
    which = f"seed {seeds[0]}" if len(seeds) == 1 else f"seeds {seeds[0]} to {seeds[-1]}"
    library = value["numbers"]["library"]
    uses = "" if library == "none" else f", train library: {library}"
    return f"{jobs}, {value['spares']} spare, {value['days']:g} days, {source}, {which}{uses}"


def _share(key: str) -> Callable[[Mapping[str, Any]], str]:
    return lambda row: "-" if row[key] is None else f"{row[key]:.2%}"


def _spread(row: Mapping[str, Any]) -> str:
    return f"{row['ettr_min']:.2%} to {row['ettr_max']:.2%}"


POLICY_COLUMNS = (
    Column("POLICY", "name", is_pinned=True),
    Column("TRAINS", _share("ettr"), is_pinned=True),
    Column("BELOW ORACLE", _share("below_oracle")),
    Column("OVER SEEDS", _spread),
    Column("RESTARTS", "restarts"),
    Column("NEEDLESS", "false_kills"),
    Column("ENDED WRONGLY", "ended_wrongly"),
    Column("SOUND NODE-HOURS ISOLATED", lambda row: f"{row['healthy_node_hours_isolated']:.0f}"),
)
WHAT_IF_COLUMNS = (
    Column("CHECKPOINT EVERY", lambda row: f"{row['checkpoint_s'] / 60:g} min", is_pinned=True),
    Column("SPARES", "spares", is_pinned=True),
    Column("LIBRARY", "library", is_pinned=True),
    Column("TRAINS", _share("ettr"), is_pinned=True),
    Column("STEPS DONE AGAIN", lambda row: f"{row['lost']['lost_steps']:.2%}"),
    Column("WAITING FOR A NODE", lambda row: f"{row['lost']['place']:.2%}"),
    Column("ENDED WRONGLY", "ended_wrongly"),
)


# -- files --------------------------------------------------------------------------------------

SUFFIXES = (".html", ".htm", ".json")


def check_output(output: Path | None, *, as_json: bool) -> None:
    """Refuse a name that cannot be written to before any work."""
    if output is None:
        return
    if output.suffix.lower() not in SUFFIXES:
        raise Failed(Exit.USAGE, f"{output}: the name has to end in .html or .json")
    if as_json and output.suffix.lower() != ".json":
        raise Failed(Exit.USAGE, f"{output}: with --json the name has to end in .json")
    if not output.parent.is_dir():
        raise Failed(Exit.USAGE, f"{output.parent} is no folder; make it first")


def _write(output: Path, value: Value) -> None:
    from everstep.cli.jobs.reporting import replace_file

    if output.suffix.lower() == ".json":
        replace_file(output, json.dumps(value, indent=2) + "\n")
    else:
        from everstep.report.render import simulation_html

        replace_file(output, simulation_html(value))
    best = value["policies"][0]
    print(f"{output}: {best['name']} trains {best['ettr']:.2%} of the time")
