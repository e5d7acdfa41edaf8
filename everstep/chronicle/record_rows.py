"""Restart records as rows of JSON: completed by the outcome of their Recovery, and described in words.

Imports no state, so that a command that only reads rows starts quickly.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from everstep.core import names
from everstep.core.bounds import rounded
from everstep.core.slots import format_ranges

if TYPE_CHECKING:
    from everstep.core.deciding.decision import Outcome
    from everstep.core.world import Snapshot

Value = dict[str, Any]
IN_MEMORY = {
    "ranks": "of the ranks that kept their process",
    "snapshot": "in memory",
    "neighbour": "in the memory of a neighbour",
}
"""How sentences name what a start resumed from, where that is no checkpoint."""


def outcome_values(outcome: Outcome) -> Value:
    """The fields of its record that a Recovery fills in when it ends."""
    return {
        "recover_result": names.RECORD_RESULT[outcome.result],
        "recover_end_at": int(outcome.now),
        "isolated": bool(outcome.isolated),
        "generation_to": outcome.generation if outcome.was_started else None,
        "resume_step": _resume_step(outcome),
        "resume_from": _resume_from(outcome),
        "kept_ranks": _kept_ranks(outcome),
        "resume_path": None if outcome.resume is None else outcome.resume.path,
        "newer_checkpoints": None if outcome.newer_saved is None else outcome.newer_saved.text,
        "evidence": outcome.evidence,
        "stages_s": dict(outcome.stages_s),
        "notes": list(outcome.notes),
        "spares": spares(outcome.stood_up_s),
    }


def spares(stood_up_s: Mapping[int, float]) -> Value | None:
    """The slots that got a spare, and the seconds in which the slowest of these had stood up before.

    New pods stand up at the same time, so that is what they would have taken. None: no spare was taken.
    """
    if not stood_up_s:
        return None
    return {"slots": sorted(stood_up_s), "saved_s": round(max(stood_up_s.values()), 3)}


def _resume_step(outcome: Outcome) -> int | None:
    resumed = outcome.snapshot or outcome.resume
    return None if resumed is None else resumed.step


def _kept_ranks(outcome: Outcome) -> str | None:
    return format_ranges(outcome.kept_ranks) if outcome.was_started and outcome.kept_ranks else None


def _resume_from(outcome: Outcome) -> str | None:
    return source(outcome.snapshot, has_checkpoint=outcome.resume is not None)


def source(snapshot: Snapshot | None, *, has_checkpoint: bool) -> str | None:
    """What a start resumes from, in one word.

    `ranks`: from those that kept their process; `neighbour`: some rank from the copy in another pod.
    """
    if snapshot is not None and snapshot.survivors:
        return "ranks"
    if snapshot is not None:
        return "neighbour" if snapshot.copies else "snapshot"
    return "checkpoint" if has_checkpoint else None


def with_outcome(record: Value, values: Value) -> Value:
    """The record of a row, completed by the values that its Recovery left."""
    stages_s = {**record["stages_s"], **values["stages_s"]}
    return {
        **record,
        **{key: value for key, value in values.items() if key != "generation_to"},
        "generation": {**record["generation"], "to": values["generation_to"]},
        "stages_s": {name: stages_s.get(name) for name in record["stages_s"]},
    }


def result_word(recover_result: str) -> str:
    """The result in words. A restart that succeeded started all ranks; its first step is still to come."""
    return "started" if recover_result == "success" else recover_result


def result(r: Mapping[str, Any]) -> str:
    """The result of a restart, and how far its run came if that ended early."""
    return f"{r['recover_result']}, {r['ended']}" if r.get("ended") else str(r["recover_result"])


def result_in_words(r: Mapping[str, Any]) -> str:
    """The result of a restart, in words for people."""
    return result({**r, "recover_result": result_word(r["recover_result"])})


def took_s(r: Mapping[str, Any]) -> float | None:
    """Seconds from the first fact until every rank was started again: all stages except `first_step`."""
    stages = [s for stage, s in r["stages_s"].items() if s is not None and stage != "first_step"]
    return sum(stages) if stages else None


def resumed_from(r: Mapping[str, Any]) -> str:
    """From where training went on: `step 40 (ckpt/step_40.pkl); 1 newer one set aside: step 60`."""
    path, step, newer = r.get("resume_path"), r.get("resume_step"), r.get("newer_checkpoints")
    if (where := IN_MEMORY.get(r.get("resume_from") or "")) is not None:
        again = r.get("lost_steps")
        done = "" if not again else f"; {again} step{'s' * (again != 1)} made again"
        return f"step {step} {where}{done}"
    if path is None:
        return "" if newer is None else f"the beginning; {newer}"
    name = "an unknown step" if step is None else f"step {step}"
    loaded = f"{name} ({file_of(path)})"
    return loaded if newer is None else f"{loaded}; {newer}"


def file_of(path: str) -> str:
    """A checkpoint in a sentence: the file and its folder."""
    return "/".join(path.split("/")[-2:])


def spares_in_words(r: Mapping[str, Any]) -> str:
    """`slot 1 got a pod that stood by: it had taken 3.2 s to stand up`. Empty: none was taken."""
    row = r.get("spares")
    if not row:
        return ""
    slots = row["slots"]
    who = f"slot {slots[0]} got a pod that stood by: it"
    if len(slots) > 1:
        who = f"slots {format_ranges(slots)} got pods that stood by: the slowest"
    return f"{who} had taken {rounded(row['saved_s'])} s to stand up"


WHERE_RANKS_STAY = {"stop": "hold", "start": "rebuild"}
"""What these stages are where ranks keep their process: none of them ends or is started."""


def _times(r: Mapping[str, Any]) -> str:
    """`detect 0.1 s, stop 0.25 s, start 1.2 s`."""
    names = WHERE_RANKS_STAY if r.get("kept_ranks") else {}
    return ", ".join(
        f"{names.get(stage, stage)} {rounded(took)} s"
        for stage, took in r["stages_s"].items()
        if took
    )


def story(r: Mapping[str, Any]) -> str:
    """Describe a record in a few lines."""
    fault, times = r["fault"], _times(r)
    bills = ", ".join(f"{units} of {name}" for name, units in r["bills"].items()) or "nothing"
    head = f"restart {r['n']} of phase {r['phase']}, incident {r['incident']}, {r['at']}"
    lines = [head, *(f"  seen     {line}" for line in r["seen"])]
    lines += [
        f"  named    {fault['class']} ({fault['kind']}), owner {fault['owner']}",
        f"  decided  {r['level']}: {r['reason']}",
        *(f"  not      {line}" for line in r["passed_over"]),
        f"  billed   {bills}",
        f"  result   {result_in_words(r)}" + (f" in {times}" if times else ""),
        *([f"  resumed  from {line}"] if (line := resumed_from(r)) else ()),
        *([f"  kept     the processes of ranks {ranks}"] if (ranks := r.get("kept_ranks")) else ()),
        *([f"  ended    {r['end_reason']}"] if r.get("end_reason") else ()),
        *(f"  waited   {waited['s']:g} s for {waited['for']}" for waited in r.get("waited", ())),
        *([f"  spare    {line}"] if (line := spares_in_words(r)) else ()),
        *(f"  note     {line}" for line in r["notes"]),
    ]
    return "\n".join(lines)
