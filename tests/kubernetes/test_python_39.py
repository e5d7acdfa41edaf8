"""The agent and the ranks in images with Python 3.9, the oldest that is promised: `make test-python39`.

The contract suite of backends, as in test_contract.py, and a look at processes. The Python is from Debian 11.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.backends.verbs import NEVER_ENDS
from tests.kubernetes import test_contract
from tests.kubernetes.jobs import PYTHON, KubernetesLab, KubernetesRun, ranks_of
from tests.kubernetes.test_contract import job, machines  # noqa: F401  # fixtures
from tests.kubernetes.test_contract import lab as lab_of_contract
from tests.testbed import python39

pytestmark = pytest.mark.python39
contract_lab = lab_of_contract
globals().update(
    {name: test for name, test in vars(test_contract).items() if name.startswith("test_")}
)


@pytest.fixture
def lab(contract_lab: KubernetesLab) -> KubernetesLab:
    contract_lab.python = python39.made()
    return contract_lab


async def test_agent_and_ranks_run_with_python_3_9_and_survive_a_crash(lab: KubernetesLab) -> None:
    old = KubernetesRun(lab, id="old-python", env=NEVER_ENDS)
    await old.launch()
    await old.step(1)
    for slot in old.slots:
        (rank,) = ranks_of(old.id, slot=slot, generation=1)
        for pid in (rank, parent(rank)):
            assert program(pid).endswith(f"{PYTHON}/usr/bin/python3.9")
    lab.end_rank(old.id, rank=1, code=3)
    await old.fact("process.exit")
    await old.again("restart")
    await old.step(1)
    assert ranks_of(old.id, slot=1, generation=2)
    await old.gone()


def program(pid: int) -> str:
    return str(Path(f"/proc/{pid}/exe").readlink())


def parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
