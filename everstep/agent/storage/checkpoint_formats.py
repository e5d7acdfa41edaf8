"""Judges the files of one checkpoint by their formats: complete, bad or unknown.

torch's `.metadata` lists every file with its length. `trainer_state.json` is written last. An index lists the
files with the tensors. The ranks of DeepSpeed and Megatron number their files. The structure of each file
counts too. Nothing is loaded, and no training library is needed.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from everstep.agent.storage import checkpoint_names, file_formats, files

TRAINER_STATE = "trainer_state.json"
OF_TRAINERS = "checkpoint-"
"""How a trainer calls its folders; accelerate's examples and many scripts do too."""
METADATA = ".metadata"
SHARD = ".distcp"
INDEX = ".index.json"
MEGATRON_TRACKER = "latest_checkpointed_iteration.txt"
DEEPSPEED_TRACKER = "latest"
TRACKERS = frozenset({MEGATRON_TRACKER, DEEPSPEED_TRACKER})

DCP, MEGATRON, HF = "dcp", "megatron", "hf"
"""A document may insist on these. With any other word a checkpoint is what it looks like."""

STATE_MAX = METADATA_MAX = 64 * 1024 * 1024
LEXED_MAX = 4 * 1024 * 1024
"""Of longer metadata only the names are looked for: to read it through takes seconds."""

_SHARD_NAME = rb"__\d+_\d+\.distcp"
_OF_A_SHARD = ("relative_path", "offset", "length")

_OF_OTHER_RANKS = "rng_state_"  # optional: the state may be complete before them
_OF_TRAINERS_ALONE = ("training_args.bin", _OF_OTHER_RANKS)
_BEFORE_WEIGHTS = frozenset({"config.json", "generation_config.json", "adapter_config.json"})
_LAST_OF_ACCELERATE = "random_states_"

# Files and folders of which there is one for each rank: DeepSpeed's, then Megatron's.
_OF_RANKS = (
    r"(?:zero_pp|mp)_rank_(\d+)(?:_mp_rank_(\d+))?_\w+_states\.pt$|^mp_rank_(\d+)(?:_(\d+))*$"
)
_NUMBER = r"(?<=_)\d+"


class Item(NamedTuple):
    """One file, as it is now."""

    path: Path
    size: int
    at: float
    is_elsewhere: bool = False  # a link that leads out of the folder


class Content(NamedTuple):
    """All files of one checkpoint."""

    folder: Path  # of all checkpoints
    path: Path
    # Files and folders with the checkpoint's name, sorted: `step-5` before `step-5.json`; links resolved.
    tops: Sequence[Path]
    step: int | None
    items: Sequence[Item]
    is_tracked: bool  # a file beside the checkpoints lists those that are complete
    is_beside_trainers: bool = False  # another folder has the state of a trainer
    before: Path | None = None  # the checkpoint that is one older


class Verdict(NamedTuple):
    """The result of looking at a checkpoint."""

    is_whole: bool | None  # None: only its age shows it
    silent: tuple[Item, ...] = ()  # files that do not show themselves whether they are complete
    why: str = ""  # it is bad


class _Format(NamedTuple):
    """A format with a rule for what a complete checkpoint has."""

    applies: bool
    is_whole: Callable[[Content], bool]
    why: str  # it is bad, if it is not whole
    vouches: bool = False  # a whole one is complete, with all of its files


def check(content: Content, format: str) -> Verdict:  # noqa: A002  # as the document says
    """Judge the checkpoint by every format that applies, then by the structure of its files.

    Raises OSError where a file cannot be read.
    """
    names = {name for item in content.items for name in (item.path.parent.name, item.path.name)}
    if any(checkpoint_names.is_unfinished(name) for name in names):
        return Verdict(False, why="files of it are not finished")
    is_dcp, is_hf = _is_dcp(names, format), _is_hf(content, names, format)
    is_indexed = any(name.endswith(INDEX) for name in names)
    formats = (
        _Format(is_dcp, _is_whole_dcp, f"{METADATA} and the files it names are not whole", True),
        _Format(is_hf, _is_whole_hf, f"its {TRAINER_STATE} is missing or wrong", True),
        _Format(is_indexed, _has_indexed_files, "its index names missing files"),
        _Format(_is_of_ranks(names), _has_no_gap, "files of some ranks are missing"),
    )
    is_vouched_for = False
    for one in formats:
        if one.applies and not one.is_whole(content):
            return Verdict(False, why=one.why)
        is_vouched_for |= one.applies and one.vouches
    if _is_of_ranks(names) and not (is_vouched_for or content.is_tracked or names & TRACKERS):
        return Verdict(False, why="nothing says that all of its ranks have saved")
    verdict = _by_structure(content, is_vouched_for=is_vouched_for)
    is_doubtful = verdict.is_whole and is_vouched_for and _has_fewer_ranks(content)
    return Verdict(None, tuple(content.items)) if is_doubtful else verdict


def _by_structure(content: Content, *, is_vouched_for: bool) -> Verdict:
    silent = []
    for item in content.items:
        is_whole = None
        if not item.is_elsewhere:
            is_whole = file_formats.is_whole(item.path, content.folder)
        if is_whole is False:
            return Verdict(False, why=f"{item.path.name} is cut off")
        if is_whole is None and not is_vouched_for:
            silent.append(item)
    return Verdict(None, tuple(silent)) if silent else Verdict(True)


# -- torch --------------------------------------------------------------------------------------


def _is_dcp(names: Iterable[str], format: str) -> bool:  # noqa: A002
    return format == DCP or any(name == METADATA or name.endswith(SHARD) for name in names)


def _is_whole_dcp(content: Content) -> bool:
    """torch writes `.metadata` last, at once; it names every other file."""
    sizes = {item.path: item.size for item in content.items}
    folders = {p.parent for p in sizes if p.name == METADATA or p.name.endswith(SHARD)}
    if not folders or any(folder / METADATA not in sizes for folder in folders):
        return False
    for folder in folders:
        metadata = files.read(folder / METADATA, METADATA_MAX, within=content.folder)
        needed = _shards(metadata)
        if needed is None or any(_length(folder / n, sizes) < s for n, s in needed.items()):
            return False
    return True


def _length(path: Path, sizes: Mapping[Path, int]) -> int:
    """-1: there is none. One that is a link to elsewhere is not among the items by this name."""
    try:
        return sizes[path] if path in sizes else path.stat().st_size
    except FileNotFoundError:
        return -1


def _shards(metadata: bytes) -> Mapping[str, int] | None:
    """Each file that the metadata names, and its least length; None: the metadata is cut off."""
    if not metadata.endswith(b"."):  # the last instruction of a pickle
        return None
    needed = {name.decode(): 1 for name in re.findall(_SHARD_NAME, metadata)}
    if len(metadata) <= LEXED_MAX:
        try:
            for name, end in _pieces(metadata):
                needed[name] = max(needed.get(name, 1), end)
        except (ValueError, IndexError):
            return needed  # no pickle of torch's: the names are all that is known
    return needed


def _pieces(pickle: bytes) -> Iterator[tuple[str, int]]:
    """The end of each piece in its file. The pickle is parsed without executing it.

    A piece has three keys, in any order, each with its value behind it: file, offset and length.
    """
    import pickletools  # as `zipfile` elsewhere: some milliseconds of an agent's start

    memo: dict[int, object] = {}
    last: object = None
    pieces: dict[object, object] = {}
    field: object = None
    for instruction, argument, _ in pickletools.genops(pickle):
        kind = instruction.name
        if kind == "FRAME":
            continue
        if kind == "MEMOIZE":
            memo[len(memo)] = last
            continue
        if kind.endswith("BINPUT"):
            memo[int(str(argument))] = last
            continue
        is_known = kind.endswith("BINGET")
        last = memo.get(int(str(argument))) if is_known else argument
        if field is not None:
            pieces[field], field = last, None
            if len(pieces) == len(_OF_A_SHARD):
                yield _piece(pieces)
                pieces = {}
        elif last in _OF_A_SHARD:
            field = last


def _piece(entries: Mapping[object, object]) -> tuple[str, int]:
    name, offset, length = (entries[key] for key in _OF_A_SHARD)
    if not (isinstance(name, str) and isinstance(offset, int) and isinstance(length, int)):
        raise ValueError("no piece of a file")
    return name, offset + length


# -- Trainers -----------------------------------------------------------------------------------


def _is_hf(content: Content, names: set[str], format: str) -> bool:  # noqa: A002
    """A trainer writes its state after the weights: until then the folder is not finished.

    Others call their folders `checkpoint-N` too, and write no such state: theirs are not a trainer's.
    """
    if format == HF or any(item.path == _state(content) for item in content.items):
        return True
    if not content.path.name.startswith(OF_TRAINERS):
        return False
    if any(name.startswith(_LAST_OF_ACCELERATE) for name in names):
        return False
    file_names = {item.path.name for item in content.items if not item.is_elsewhere}
    is_trainers = any(name.startswith(_OF_TRAINERS_ALONE) for name in file_names)
    return bool(file_names) and (
        content.is_beside_trainers or is_trainers or file_names <= _BEFORE_WEIGHTS
    )


def _is_whole_hf(content: Content) -> bool:
    try:
        state = files.read_json(_state(content), STATE_MAX, within=content.folder)
        return bool(int(state["global_step"]) == content.step)
    except (FileNotFoundError, NotADirectoryError, *file_formats.NO_VERDICT):
        return False


def _has_fewer_ranks(content: Content) -> bool:
    """Whether fewer ranks saved than for the checkpoint before: some are late, or the job has fewer now."""
    if content.before is None or content.before.is_symlink():
        return False
    before = {path.name for path in content.before.glob("*")}
    missing = before - {item.path.name for item in content.items}
    return TRAINER_STATE in before and any(name.startswith(_OF_OTHER_RANKS) for name in missing)


def _state(content: Content) -> Path:
    return content.tops[0] / TRAINER_STATE


def _has_indexed_files(content: Content) -> bool:
    """The index of tensors in several files is written after them."""
    sizes = {item.path: item.size for item in content.items}
    for path in sizes:
        if path.name.endswith(INDEX):
            try:
                index = files.read_json(path, STATE_MAX, within=content.folder)
                needed = {str(name) for name in index["weight_map"].values()}
            except file_formats.NO_VERDICT:
                return False
            if any(_length(path.parent / name, sizes) < 0 for name in needed):
                return False
    return True


# -- Ranks --------------------------------------------------------------------------------------


def _is_of_ranks(names: Iterable[str]) -> bool:
    return any(re.search(_OF_RANKS, name) for name in names)


def _has_no_gap(content: Content) -> bool:
    """Whether no rank's file is missing: files of ranks 0 and 2 without rank 1 are a gap."""
    numbers: dict[tuple[Path, str], set[tuple[int, ...]]] = {}
    for path in {path for item in content.items for path in (item.path, item.path.parent)}:
        match = re.search(_OF_RANKS, path.name)
        if match is not None:
            ranks = tuple(int(number) for number in re.findall(_NUMBER, match[0]))
            kind = re.sub(_NUMBER, "#", path.name)
            numbers.setdefault((path.parent, kind), set()).add(ranks)
    return all(_is_full(ranks) for ranks in numbers.values())


def _is_full(ranks: set[tuple[int, ...]]) -> bool:
    most: list[int] = [max(column) + 1 for column in zip(*ranks)]
    return len(ranks) == math.prod(most)
