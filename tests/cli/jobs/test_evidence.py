"""What `why` prints of the stacks and last lines that an agent kept before it killed a rank."""

from __future__ import annotations

from pathlib import Path

from everstep.client.jobs.evidence import RANKS_MOST, STACK_MOST, evidence_lines


def test_stacks_and_last_lines_are_printed_rank_by_rank(tmp_path: Path) -> None:
    (tmp_path / "r0.stacks").write_text("process 28 is stopped\n")
    (tmp_path / "r0.log").write_text("".join(f"step {number}\n" for number in range(9)))
    (tmp_path / "r1.stacks").write_text("".join(f"frame {n}\n" for n in range(STACK_MOST + 5)))
    lines = [line.strip() for line in evidence_lines(str(tmp_path))]
    assert lines[:4] == [
        f"evidence {tmp_path}",
        "rank 0, stack:",
        "process 28 is stopped",
        "rank 0, last lines:",
    ]
    assert lines[4:8] == ["step 5", "step 6", "step 7", "step 8"]
    assert lines[8:] == ["rank 1, stack:", *(f"frame {number}" for number in range(STACK_MOST))]


def test_many_ranks_are_counted_and_files_of_another_machine_are_only_named(tmp_path: Path) -> None:
    for number in range(RANKS_MOST + 3):
        (tmp_path / f"r{number}.stacks").write_text("frame\n")
    assert [*evidence_lines(str(tmp_path))][-1].strip() == "and 3 more ranks"
    assert [*evidence_lines("/not/here")] == ["  evidence /not/here"]
    assert [*evidence_lines(None)] == []
