"""Judges a course of chaos by what the training script wrote and what Temporal's histories hold.

Pure. Each rule takes the evidence of one job and returns sentences, none if it holds. No rule reads a view of
the product (status, records, events): a product that is wrong about itself does not pass either.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise

from tests.chaos.evidence import FREE, Evidence, Injection, Line, Recovery

Rule = Callable[[Evidence], list[str]]


def violations(evidence: Evidence) -> list[str]:
    return [f"{evidence.job}: {sentence}" for rule in RULES for sentence in rule(evidence)]


def broken_rules(evidence: Evidence) -> set[str]:
    return {rule.__name__ for rule in RULES if rule(evidence)}


# -- What the script wrote --------------------------------------------------------------------------


def never_two_generations(evidence: Evidence) -> list[str]:
    """After the first line of a generation, none of an older one comes. The order is that of the file."""
    sentences, newest = [], 0
    for line in _written(evidence):
        if line.generation < newest:
            what = f"{line.what} {line.step} of rank {line.rank}"
            sentences.append(
                f"generation {line.generation} wrote ({what}) after {newest} had begun"
            )
        newest = max(newest, line.generation)
    return _few(sentences)


def one_process_a_rank(evidence: Evidence) -> list[str]:
    """A rank of a generation is one process, which starts once."""
    processes: dict[tuple[int, int], set[str]] = defaultdict(set)
    starts: Counter[tuple[int, int]] = Counter()
    for line in _written(evidence):
        key = line.generation, line.rank
        processes[key].add(line.process)
        starts[key] += line.what == "start"
    return [
        f"rank {rank} of generation {generation} started {starts[generation, rank]} times, in "
        f"{len(those)} processes"
        for (generation, rank), those in processes.items()
        if len(those) != 1 or starts[generation, rank] != 1
    ]


def steps_follow_each_other(evidence: Evidence) -> list[str]:
    """Each process goes on with the step after the one it resumed from, and leaves none out."""
    sentences = []
    for process in _processes(evidence).values():
        steps = [line.step for line in process if line.what in {"start", "step"}]
        for earlier, later in pairwise(steps):
            if later != earlier + 1:
                head = process[0]
                sentences.append(
                    f"rank {head.rank} of generation {head.generation} went from step {earlier} to {later}"
                )
    return sentences


def all_steps_are_made(evidence: Evidence) -> list[str]:
    """Every step up to the last one was completed by every rank.

    A rank may be killed between a step and its note, while rank 0 saves that step: then the next start goes
    on from it.
    """
    if evidence.status != "Completed":
        return []
    made = {(line.rank, line.step) for line in _written(evidence) if line.what == "step"}
    resumed = {line.step for line in _written(evidence) if line.what == "start"}
    missing = {
        step
        for step in range(1, len(evidence.expected) + 1)
        for rank in range(evidence.ranks)
        if (rank, step) not in made and (rank == 0 or step not in resumed)
    }
    return [f"steps {sorted(missing)[:5]} were not made by all ranks"] if missing else []


def resumes_from_what_is_whole(evidence: Evidence) -> list[str]:
    """A start resumes from the newest checkpoint that was saved and not spoiled since, or from a newer one.

    A rollback leaves one that is whole behind: two runs in a row ended alike from it.
    """
    sentences, whole, perhaps = [], set[int](), set[int]()
    starts: dict[int, int] = {}
    rollbacks = sum(each.level == "rollback" for each in evidence.recoveries)
    for line in evidence.lines:
        match line.what:
            case "save" | "spoiled":
                whole.discard(line.step)
                perhaps.add(line.step)
            case "saved":
                whole.add(line.step)
            case "start":
                if starts.setdefault(line.generation, line.step) != line.step:
                    sentences.append(
                        f"ranks of generation {line.generation} resumed from two steps"
                    )
                if line.step not in _usable(whole, perhaps, rollbacks=rollbacks):
                    sentences.append(
                        f"generation {line.generation} resumed from step {line.step}, though "
                        f"{max(whole, default=0)} was the newest whole checkpoint"
                    )
            case _:
                pass
    return _few(list(dict.fromkeys(sentences)))


def _usable(whole: set[int], perhaps: set[int], *, rollbacks: int) -> set[int]:
    """The steps that a start may resume from.

    One that is only perhaps whole may be there: its writer died between the rename and its note, or it was
    chosen just before it was spoiled. The script itself refuses one that is not whole to the last bit.
    """
    ordered = [0, *sorted(whole)]
    return {*ordered[-1 - rollbacks :], *(step for step in perhaps if step > ordered[-1])}


def bit_exact(evidence: Evidence) -> list[str]:
    """Every step that any generation made has the weights of the undisturbed run, and so has the end."""
    sentences = [
        f"step {line.step} of generation {line.generation} has other weights than an undisturbed run"
        for line in _written(evidence)
        if line.what == "step"
        and line.step <= len(evidence.expected)
        and line.weights != evidence.expected[line.step - 1]
    ]
    if evidence.status == "Completed" and evidence.final != evidence.expected_final:
        sentences.append(f"it ended with {evidence.final} instead of {evidence.expected_final}")
    return _few(sentences)


# -- What the histories say -------------------------------------------------------------------------


def each_restart_is_explained(evidence: Evidence) -> list[str]:
    """Each Recovery belongs to an injection before it that may cost one of its class; each pays once.

    Within an incident a Recovery is called after the fault that opened it; its cause may be another one.
    """
    new_ones = [each for each in evidence.recoveries if not each.is_repeat]
    unexplained = _unmatched(new_ones, evidence.injections)
    return [f"{each.id} is explained by no fault or operation" for each in unexplained]


def each_start_has_its_recovery(evidence: Evidence) -> list[str]:
    """The script began at most once for each Recovery and each life of the job.

    Of a server that forgot some of its histories this is not to be known.
    """
    if any(injection.forgets for injection in evidence.injections):
        return []
    generations = {line.generation for line in _written(evidence)}
    most = evidence.lives + len(evidence.recoveries)
    if len(generations) <= most:
        return []
    return [f"the script was started {len(generations)} times, for {most} launches and Recoveries"]


def no_fault_is_missed(evidence: Evidence) -> list[str]:
    """After a rank of the newest generation was ended, a newer one starts."""
    last_start = max((line.at for line in _written(evidence) if line.what == "start"), default=0.0)
    return [
        f"{injection} at {injection.at:.2f} was followed by no start"
        for injection in evidence.injections
        if injection.must_restart and injection.at > last_start
    ]


def only_what_was_cut_short_is_repeated(evidence: Evidence) -> list[str]:
    pairs = zip([None, *evidence.recoveries], evidence.recoveries, strict=False)
    return [
        f"{later.id} repeats what was not cut short"
        for earlier, later in pairs
        if later.is_repeat and (earlier is None or not earlier.is_cut_short)
    ]


def faults_are_billed_once(evidence: Evidence) -> list[str]:
    """A Recovery costs one; a planned one, and one that tries again what was billed already, nothing."""
    return [
        f"{each.id} is billed {each.billed}"
        for each in evidence.recoveries
        if each.billed != (each.cls not in FREE and not each.is_repeat)
    ]


def budget_is_what_happened(evidence: Evidence) -> list[str]:
    """The budget for all restarts has spent what the decisions of the histories billed to it."""
    billed = sum(each.billed for each in evidence.recoveries if each.is_in_last_run)
    if evidence.spent in {None, billed}:
        return []
    return [f"its budget has spent {evidence.spent}, for {billed} restarts that are billed"]


def ends_well(evidence: Evidence) -> list[str]:
    wrong = [] if evidence.status == "Completed" else [f"it ended as {evidence.status}"]
    return [*wrong, *evidence.stuck]


def nothing_is_left(evidence: Evidence) -> list[str]:
    return [f"left behind: {each}" for each in evidence.left]


RULES: Sequence[Rule] = (
    never_two_generations,
    one_process_a_rank,
    steps_follow_each_other,
    all_steps_are_made,
    resumes_from_what_is_whole,
    bit_exact,
    each_restart_is_explained,
    each_start_has_its_recovery,
    no_fault_is_missed,
    only_what_was_cut_short_is_repeated,
    faults_are_billed_once,
    budget_is_what_happened,
    ends_well,
    nothing_is_left,
)


# -- Parts ------------------------------------------------------------------------------------------


def _written(evidence: Evidence) -> Iterator[Line]:
    """The lines that ranks wrote."""
    return (line for line in evidence.lines if line.process)


def _processes(evidence: Evidence) -> Mapping[str, list[Line]]:
    by_process: dict[str, list[Line]] = defaultdict(list)
    for line in _written(evidence):
        by_process[line.process].append(line)
    return by_process


def _few(sentences: list[str], most: int = 5) -> list[str]:
    more = len(sentences) - most
    return sentences if more <= 0 else [*sentences[:most], f"and {more} more of this kind"]


def _unmatched(recoveries: Sequence[Recovery], injections: Sequence[Injection]) -> list[Recovery]:
    """Recoveries that are left over in a largest matching: a greedy choice could blame the wrong one."""
    places = [
        (injection, cls)
        for injection in injections
        for cls, most in injection.may_cost.items()
        for _ in range(most)
    ]
    recovery_at: dict[int, int] = {}  # place -> recovery

    def fits(number: int, place: int) -> bool:
        injection, cls = places[place]
        recovery = recoveries[number]
        is_of_class = cls in {recovery.cls, "*"} or not recovery.opens_incident
        return is_of_class and injection.at <= recovery.at

    def finds_place(number: int, tried: set[int]) -> bool:
        for place in range(len(places)):
            if place in tried or not fits(number, place):
                continue
            tried.add(place)
            if place not in recovery_at or finds_place(recovery_at[place], tried):
                recovery_at[place] = number
                return True
        return False

    return [each for number, each in enumerate(recoveries) if not finds_place(number, set())]
