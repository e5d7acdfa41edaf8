"""A worker is ready while it polls and its Temporal server answers: what a readiness probe gets."""

from __future__ import annotations

import asyncio
import urllib.error
import urllib.request
from pathlib import Path

from everstep.processes import free_port
from tests.support.devserver import DevServer
from tests.support.patience import HUNG_S
from tests.support.workerproc import WorkerProcess
from tests.telemetry.receiver import scrape


async def probe(address: str) -> tuple[int, str]:
    """The answer of /ready; 0: nothing listens."""

    def answer() -> tuple[int, str]:
        try:
            with urllib.request.urlopen(f"http://{address}/ready", timeout=5) as response:
                return response.status, response.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()
        except OSError:
            return 0, ""

    return await asyncio.to_thread(answer)


async def until_answer(address: str, status: int) -> str:
    async with asyncio.timeout(HUNG_S):
        while (answer := await probe(address))[0] != status:
            await asyncio.sleep(0.1)
    return answer[1]


async def test_a_worker_whose_server_goes_away_is_not_ready_until_it_is_back(
    tmp_path: Path,
) -> None:
    address = f"127.0.0.1:{free_port()}"
    async with await DevServer.start(db_file=tmp_path / "server.db") as server:
        namespace = await server.new_namespace("ready")
        async with WorkerProcess(
            address=server.address,
            namespace=namespace,
            home=tmp_path / "worker",
            env={"EVERSTEP_METRICS_ADDRESS": address},
        ):
            assert await until_answer(address, 200) == "ready\n"
            server.kill()
            problem = await until_answer(address, 503)
            assert problem.startswith("the Temporal server does not answer: ")
            assert await scrape(address)  # it lives, and its metrics go on
            await server.restart()
            assert await until_answer(address, 200) == "ready\n"
