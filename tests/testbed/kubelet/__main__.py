"""The program: `python -m tests.testbed.kubelet ACCESS FOLDER`.

ACCESS is a file that says how to reach the cluster. Nodes are made and faults are requested over the socket
`FOLDER/control.sock`: one line of JSON each, `{"do": NAME, "with": ARGUMENTS}`, answered by `{}` or by
`{"error": TEXT}`.
"""

from __future__ import annotations

import asyncio
import json
import logging
import sys
from pathlib import Path
from typing import Any

from tests.testbed.api import UNREACHABLE, ApiError
from tests.testbed.controlplane import ClusterAccess
from tests.testbed.kubelet.faults import FAULTS, UnknownFault
from tests.testbed.kubelet.kubelet import Kubelet
from tests.testbed.kubelet.node import NodeSpec


async def main(access_file: Path, folder: Path) -> None:
    access = ClusterAccess.from_json(access_file.read_text())
    async with access.api() as api:
        kubelet = Kubelet(api, folder / "nodes")
        await kubelet.start()

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            while line := await reader.readline():
                reply = await _carry_out(kubelet, json.loads(line))
                writer.write(json.dumps(reply).encode() + b"\n")
            writer.close()

        async with await asyncio.start_unix_server(serve, folder / "control.sock"):
            await kubelet.run()


async def _carry_out(kubelet: Kubelet, request: dict[str, Any]) -> dict[str, str]:
    name, arguments = request["do"], request["with"]
    try:
        if name == "add-node":
            await kubelet.add_node(NodeSpec(**arguments))
        elif name == "remove-node":
            await kubelet.remove_node(**arguments)
        elif name == "restore":
            await kubelet.restore([NodeSpec(**one) for one in arguments["nodes"]])
        elif name in FAULTS:
            await FAULTS[name](kubelet, **arguments)
        else:
            raise UnknownFault(f"no fault {name}; there are {', '.join(FAULTS)}")
    except (UnknownFault, TypeError, ApiError, *UNREACHABLE) as error:
        return {"error": f"{name}: {error}"}
    return {}


if __name__ == "__main__":
    logging.basicConfig(format="%(asctime)s %(name)s %(message)s")
    asyncio.run(main(Path(sys.argv[1]), Path(sys.argv[2])))
