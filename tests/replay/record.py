"""Records the histories that `test_replay.py` replays: `make histories`, after a change of the loop."""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

from temporalio.client import Client

from tests.replay.stories import OTHER_STORIES, RECOVERIES, STORIES
from tests.support.devserver import DevServer
from tests.support.rows import recovery, runs
from tests.support.scene import Scene, shared_scene
from tests.support.stage import Handle

FOLDER = Path(__file__).parent / "histories"

OF_ONE_MACHINE = frozenset({"identity", "stackTrace", "binaryChecksum", "requestId"})
"""Fields of a history that depend on where it was recorded; no replay needs them."""


def plain(value: Any) -> Any:
    """The history without what ties it to one machine."""
    if isinstance(value, dict):
        return {k: plain(v) for k, v in value.items() if k not in OF_ONE_MACHINE}
    return [plain(item) for item in value] if isinstance(value, list) else value


async def histories(client: Client, job: Handle) -> AsyncIterator[str]:
    """Every run of the job, oldest first."""
    for run in await runs(client, job):
        history = await run.fetch_history()
        yield json.dumps(plain(history.to_json_dict()), separators=(",", ":"))


async def keep(scene: Scene, name: str, job: Handle, folder: Path) -> None:
    runs = [text async for text in histories(scene.stage.client, job)]
    for number, text in enumerate(runs, start=1):
        path = folder / (f"{name}.json" if len(runs) == 1 else f"{name}_{number}.json")
        path.write_text(text + "\n", encoding="utf-8")
        sys.stdout.write(f"{path.name}: {len(text) // 1024} KB\n")


async def record(scene: Scene, folder: Path, names: Sequence[str]) -> None:
    client = scene.stage.client
    for name, story in STORIES.items():
        if names and name not in names:
            continue
        job = await story.tell(scene, name.replace("_", "-"))
        await keep(scene, name, job, folder)
        if name in RECOVERIES:
            child: Handle = client.get_workflow_handle(await recovery(client, job))
            await keep(scene, f"{name}_recovery", child, folder)
    for name, other in OTHER_STORIES.items():
        if not names or name in names:
            await keep(scene, name, await other(scene), folder)


async def main(names: Sequence[str]) -> None:
    FOLDER.mkdir(exist_ok=True)
    if not names:
        for path in FOLDER.glob("*.json"):
            path.unlink()
    with tempfile.TemporaryDirectory(prefix="everstep-record-") as scratch:
        home = Path(scratch)
        async with await DevServer.start() as server, shared_scene(server, home) as scene:
            await record(scene, FOLDER, names)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1:]))
