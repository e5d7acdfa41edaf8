"""An experiment: jobs, a cluster and its mishaps, and the policies that meet them, over several seeds.

`results` is the JSON of `everstep simulate`; pages and the report are made of it alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from statistics import mean
from typing import Any

from everstep.core.spec import JobSpec
from everstep.simulate.accounts import CAUSES, Account, total
from everstep.simulate.fault_classes import PROFILES, Profile, row_named
from everstep.simulate.jobs import JobNumbers, Library, as_simulated
from everstep.simulate.mishaps import Mishap, drawn, spares_for
from everstep.simulate.policies import POLICIES, PolicyUnderTest
from everstep.simulate.runs import Scene, played
from everstep.simulate.trace import Trace, mishaps_of

Value = dict[str, Any]
Progress = Callable[[str], None]

CAUSE_NAMES: Mapping[str, str] = {
    "lost_steps": "steps done again",
    "ended": "ended without need",
    "detect": "until a fault was reported",
    "decide": "from there to a decision",
    "restart": "restarts",
    "place": "waiting for a node",
    "isolation": "waiting, sound nodes isolated",
    "checkpoints": "writing checkpoints",
    "snapshots": "writing snapshots",
    "slow": "slow nodes",
}
"""What people read; `accounts.CAUSES` says more."""

NUMBERS = (
    *("step_s", "checkpoint_s", "write_s", "start_s", "load_s", "pod_s"),
    *("library", "snapshot_every_s", "snapshot_s", "restore_s", "rebuild_s"),
)
"""Fields of `JobNumbers` that people choose."""
USUAL_POLICIES = ("document", "oracle")


@dataclass(frozen=True, slots=True, kw_only=True)
class Experiment:
    """Everything that a simulation depends on."""

    jobs: tuple[JobSpec, ...]
    numbers: JobNumbers = field(default_factory=JobNumbers)
    nodes: int | None = None  # of the only job; None: as in its document
    spares: int | None = None  # None: enough 99 % of the time
    days: float = 30.0
    seeds: Sequence[int] = (7,)
    profile: Profile = field(default_factory=lambda: PROFILES["reference"])
    trace: Trace | None = None
    policies: tuple[PolicyUnderTest, ...] = tuple(POLICIES[name] for name in USUAL_POLICIES)

    @property
    def job_nodes(self) -> int:
        return sum(job.phases[0].nodes for job in self.simulated_jobs)

    @property
    def simulated_jobs(self) -> tuple[JobSpec, ...]:
        return tuple(as_simulated(job, self.numbers, nodes=self.nodes) for job in self.jobs)

    @property
    def spare_nodes(self) -> int:
        if self.spares is not None:
            return self.spares
        return spares_for(self.profile, self.job_nodes)

    @property
    def cluster_nodes(self) -> int:
        return self.job_nodes + self.spare_nodes


def scene(experiment: Experiment, seed: int) -> Scene:
    return Scene(
        jobs=experiment.simulated_jobs,
        nodes=experiment.cluster_nodes,
        numbers=experiment.numbers,
        mishaps=mishaps(experiment, seed),
        days=experiment.days,
    )


def mishaps(experiment: Experiment, seed: int) -> tuple[Mishap, ...]:
    nodes, days = experiment.cluster_nodes, experiment.days
    if experiment.trace is not None:
        return mishaps_of(
            experiment.trace, profile=experiment.profile, nodes=nodes, days=days, seed=seed
        )
    return drawn(experiment.profile, nodes=nodes, days=days, seed=seed)


def results(experiment: Experiment, progress: Progress = lambda _text: None) -> Value:
    """Play every policy over every seed."""
    scenes = {seed: scene(experiment, seed) for seed in experiment.seeds}
    rows = [_policy_row(policy, scenes, progress) for policy in experiment.policies]
    oracle = next((row["ettr"] for row in rows if row["name"] == "oracle"), None)
    for row in rows:
        row["below_oracle"] = None if oracle is None else oracle - row["ettr"]
    counts = _counted(scenes)
    return {
        **inputs(experiment),
        "mishaps": counts,
        "sources": {name: row_named(name).source for name in counts},
        "causes": dict(CAUSE_NAMES),
        "policies": rows,
    }


def inputs(experiment: Experiment) -> Value:
    """What the results depend on."""
    numbers = experiment.numbers
    return {
        "jobs": [
            {"name": job.name, "dialect": job.dialect, "nodes": job.phases[0].nodes}
            for job in experiment.simulated_jobs
        ],
        "spares": experiment.spare_nodes,
        "days": experiment.days,
        "seeds": list(experiment.seeds),
        "profile": experiment.profile.name,
        "faults_per_1000_node_days": experiment.profile.rate,
        "trace": None if experiment.trace is None else experiment.trace.name,
        "numbers": {name: getattr(numbers, name) for name in NUMBERS},
    }


def _counted(scenes: dict[int, Scene]) -> Value:
    counts: dict[str, int] = {}
    for one in scenes.values():
        for mishap in one.mishaps:
            counts[mishap.name] = counts.get(mishap.name, 0) + 1
    return dict(sorted(counts.items(), key=lambda pair: -pair[1]))


def _policy_row(policy: PolicyUnderTest, scenes: dict[int, Scene], progress: Progress) -> Value:
    accounts: list[Account] = []
    for seed, one in scenes.items():
        progress(f"{policy.name}, seed {seed}")
        accounts.append(played(one, policy))
    return {
        "name": policy.name,
        "about": policy.about,
        "source": policy.source,
        **account_values(accounts),
    }


def account_values(accounts: Sequence[Account]) -> Value:
    """The results of one policy over all seeds; counts are sums."""
    every = total(accounts)
    shares = [one.ettr for one in accounts]
    whole_s = every.total_s or 1.0
    return {
        "ettr": every.ettr,
        "ettr_min": min(shares),
        "ettr_max": max(shares),
        "ettr_mean": mean(shares),
        "lost": {cause: every.lost_s.get(cause, 0.0) / whole_s for cause in CAUSES},
        "lost_h": {cause: every.lost_s.get(cause, 0.0) / 3_600 for cause in CAUSES},
        "levels": dict(sorted(every.levels.items())),
        "restarts": every.restarts,
        "false_kills": every.false_kills,
        "ended_wrongly": every.ended_wrongly,
        "ended_by_script": every.ended_by_script,
        "healthy_node_hours_isolated": every.healthy_isolated_h,
    }


# -- what if ------------------------------------------------------------------------------------


def what_if(
    experiment: Experiment,
    *,
    checkpoints_s: Sequence[float],
    spares: Sequence[int],
    libraries: Sequence[Library] = ("none",),
    progress: Progress = lambda _text: None,
) -> list[Value]:
    """The first policy for every combination; what is worth most is the first row of all."""
    rows = []
    for checkpoint_s, count, library in product(checkpoints_s, spares, libraries):
        numbers = replace(experiment.numbers, checkpoint_s=checkpoint_s, library=library)
        varied = replace(experiment, numbers=numbers, spares=count)
        progress(f"a checkpoint every {checkpoint_s:g} s, {count} spares, train library {library}")
        accounts = [
            played(scene(varied, seed), experiment.policies[0]) for seed in experiment.seeds
        ]
        inputs = {"checkpoint_s": checkpoint_s, "spares": count, "library": library}
        rows.append({**inputs, **account_values(accounts)})
    return rows


# -- curves -------------------------------------------------------------------------------------

CURVE_DAYS = 10.0
"""A point of a curve is a run of its own: so long at most, with the first seed."""
CHECKPOINTS_S = (60.0, 300.0, 900.0, 3_600.0)
SPARE_SHARES = (0.0, 0.25, 0.5, 1.0, 2.0)
SIZE_SHARES = (0.125, 0.25, 0.5, 1.0)


def curves(experiment: Experiment, progress: Progress = lambda _text: None) -> list[Value]:
    """The share that trains over checkpoint intervals, spares and, of a single job, its size."""
    short = replace(
        experiment, days=min(experiment.days, CURVE_DAYS), seeds=tuple(experiment.seeds)[:1]
    )
    numbers, spares = experiment.numbers, spares_for(experiment.profile, experiment.job_nodes)
    by_checkpoint = [
        (f"{s / 60:g} min", replace(short, numbers=replace(numbers, checkpoint_s=s)))
        for s in CHECKPOINTS_S
    ]
    counts = sorted({round(spares * share) for share in SPARE_SHARES})
    by_spares = [(f"{count} spares", replace(short, spares=count)) for count in counts]
    made = [
        _curve("Over the time between checkpoints", by_checkpoint, progress),
        _curve("Over spare nodes", by_spares, progress),
    ]
    if len(experiment.jobs) == 1:
        sizes = sorted({max(round(experiment.job_nodes * share), 1) for share in SIZE_SHARES})
        by_size = [(f"{n} nodes", replace(short, nodes=n, spares=None)) for n in sizes]
        made.append(_curve("Over the size of the job", by_size, progress))
    return made


def _curve(title: str, varied: Sequence[tuple[str, Experiment]], progress: Progress) -> Value:
    points = []
    for label, one in varied:
        progress(f"{title.lower()}: {label}")
        points.append({"label": label, "ettr": dict(_shares(one))})
    return {"title": title, "points": points}


def _shares(experiment: Experiment) -> Iterator[tuple[str, float]]:
    (seed,) = experiment.seeds
    one = scene(experiment, seed)
    oracle = [policy for policy in experiment.policies[1:] if policy.name == "oracle"]
    for policy in (experiment.policies[0], *oracle):
        yield policy.name, played(one, policy).ettr
