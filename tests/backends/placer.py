"""A worker of the local cluster that carries out one order to place and then only looks after pods.

python placer.py SETTINGS ORDER: the settings as JSON, the order as the books keep it.
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

from everstep.backends.local.backend import LocalBackend
from everstep.backends.local.database.placing import from_text
from everstep.backends.local.settings import LocalSettings

PLACED = "placed"


async def main(settings: str, order: str) -> None:
    told = json.loads(settings)
    backend = await LocalBackend.open(LocalSettings(**{**told, "home": Path(told["home"])}))
    asked = from_text(order)
    while not (await backend.ensure_placed(asked)).placed:
        await backend.observe(asked.job, cursor="", wait_s=0.05)
    print(PLACED, flush=True)  # noqa: T201  # for who started it
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
