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
    local_settings = json.loads(settings)
    backend = await LocalBackend.open(
        LocalSettings(**{**local_settings, "home": Path(local_settings["home"])})
    )
    place_order = from_text(order)
    while not (await backend.ensure_placed(place_order)).placed:
        await backend.observe(place_order.job, cursor="", wait_s=0.05)
    print(PLACED, flush=True)  # noqa: T201  # for who started it
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
