"""Really ends processes in the ways of the table, and prints what an agent would quote of each.

    python -m tests.ends.provoke [PYTHON WITH TORCH] > tests/ends/provoked.json

It needs root for the file systems that are full or can only be read. What no machine of ours can provoke is
in `reported.json`, after public threads.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from everstep.agent.observing import quotes
from everstep.protocol.exits import Exit

PLAIN: dict[str, str] = {
    "import-missing": "import flash_attn",
    "import-shared-object": "import ctypes; ctypes.CDLL('libcudart.so.99')",
    "syntax": "exec('for')",
    "name": "lr = learning_rate * 2",
    "attribute": "(1).cuda()",
    "type": "len(3)",
    "key": "{'lr': 1}['learning_rate']",
    "index": "[][3]",
    "value": "int('3e-4')",
    "assertion": "assert 7 % 2 == 0, 'batch size must be even'",
    "division": "1 / 0",
    "not-implemented": "raise NotImplementedError('backward of this op')",
    "recursion": "def f(): f()\nf()",
    "arguments": "import argparse; p = argparse.ArgumentParser(); p.parse_args(['--lr', '1'])",
    "file-missing": "open('/data/train/shard-00017.tar')",
    "file-forbidden": (
        "import os; open('secret', 'w').close(); os.chmod('secret', 0); os.setuid(65534); open('secret')"
    ),
    "json-broken": "import json; json.loads('{\"text\": \"a')",
    "text-encoding": "b'\\xff\\xfe'.decode()",
    "pickle-cut": "import pickle; pickle.loads(b'')",
    "zip-broken": "import zipfile, io; zipfile.ZipFile(io.BytesIO(b'abc'))",
    "gzip-broken": "import gzip; gzip.decompress(b'plain text, no gzip')",
    "nan": "raise FloatingPointError('loss is nan at step 81, stopping')",
    "memory-address-space": (
        "import resource; resource.setrlimit(resource.RLIMIT_AS, (1 << 28, 1 << 28)); bytearray(1 << 30)"
    ),
    "open-files": (
        "import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (16, 16))\n"
        "x = [open('/dev/null') for _ in range(99)]"
    ),
    "port-taken": (
        "import socket; a = socket.socket(); a.bind(('127.0.0.1', 0)); a.listen()\n"
        "b = socket.socket(); b.bind(a.getsockname())"
    ),
    "refused": "import socket; socket.create_connection(('127.0.0.1', 1))",
    "no-such-host": "import socket; socket.getaddrinfo('rank-0.trainer.invalid', 29500)",
    "segfault": "import ctypes; ctypes.string_at(0)",
    "abort": "import os; os.abort()",
    "killed": "import os, signal; os.kill(os.getpid(), signal.SIGKILL)",
    "terminated": "import os, signal; os.kill(os.getpid(), signal.SIGTERM)",
    "exit-code": "raise SystemExit(3)",
    "disk-full": "f = open(FULL + '/ckpt', 'wb'); f.write(bytes(1 << 22)); f.flush()",
    "read-only": "open(READ_ONLY + '/ckpt', 'wb')",
}  # fmt: skip
TORCH: dict[str, str] = {
    "torch-shapes": "torch.ones(4, 8) @ torch.ones(4, 8)",
    "torch-state-dict": "torch.nn.Linear(2, 2).load_state_dict(torch.nn.Linear(3, 2).state_dict())",
    "torch-index": "torch.nn.Embedding(4, 2)(torch.tensor([9]))",
    "torch-no-driver": "torch.ones(1).cuda()",
    "torch-cpu-memory": "torch.empty(1 << 50)",
    "torch-checkpoint-cut": (
        "torch.save(torch.ones(9), 'a.pt'); b = open('a.pt', 'rb').read()\n"
        "open('a.pt', 'wb').write(b[:-99]); torch.load('a.pt')"
    ),
    "torch-worker-error": (
        "class D(torch.utils.data.Dataset):\n"
        "    def __len__(self): return 4\n"
        "    def __getitem__(self, i): raise KeyError('caption')\n"
        "list(torch.utils.data.DataLoader(D(), num_workers=1))"
    ),
    "torch-worker-killed": (
        "import os, signal\n"
        "class D(torch.utils.data.Dataset):\n"
        "    def __len__(self): return 4\n"
        "    def __getitem__(self, i): os.kill(os.getpid(), signal.SIGKILL)\n"
        "list(torch.utils.data.DataLoader(D(), num_workers=1))"
    ),
    "torch-peer-gone": (
        "import os, torch.distributed as d, torch.multiprocessing as m\n"
        "def f(r):\n"
        "    d.init_process_group('gloo', rank=r, world_size=2,\n"
        "        init_method='file://' + os.path.abspath('s'))\n"
        "    if r: os._exit(1)\n"
        "    d.all_reduce(torch.ones(9)); d.all_reduce(torch.ones(9))\n"
        "if os.fork(): f(0)\n"
        "else: f(1)"
    ),
    "torch-peer-late": (
        "import datetime, torch.distributed as d\n"
        "d.init_process_group('gloo', rank=0, world_size=2, init_method='tcp://127.0.0.1:29987',\n"
        "    timeout=datetime.timedelta(seconds=3))"
    ),
    "torch-gradient": "torch.ones(1).backward()",
}  # fmt: skip


def provoke(
    name: str, script: str, python: str, folder: Path, mounts: dict[str, str]
) -> dict[str, Any]:
    """How the script ended, as an agent puts it into a fact."""
    header = "".join(f"{key} = {value!r}\n" for key, value in mounts.items())
    header += "import torch\n" if name.startswith("torch-") else ""
    path = folder / "train.py"
    path.write_text(header + script + "\n")
    ended = subprocess.run(
        [python, str(path)],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=120,
        check=False,
        env={**os.environ, "PYTHONUNBUFFERED": "1", "HF_HUB_OFFLINE": "1"},
    )
    lines = ended.stdout.decode(errors="replace").replace(str(folder), "/job").splitlines()
    how = Exit.of_status(ended.returncode)
    output = re.sub(r'File "/(?!job).*/', 'File "/python/', quotes.last_output(lines))
    return {
        "id": name,
        "source": f"provoked: {script}",
        "exit_code": how.code,
        "signal": how.signal,
        "exception": quotes.last_exception(lines, how.code),
        "log": "\n".join(output.splitlines()[-6:]),
    }


def main() -> None:
    torch = sys.argv[1] if len(sys.argv) > 1 else sys.executable
    rows = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        mounts = {key: str(folder / key.lower()) for key in ("FULL", "READ_ONLY")}
        for key, options in (("FULL", "size=1m"), ("READ_ONLY", "ro")):
            Path(mounts[key]).mkdir()
            subprocess.run(["mount", "-t", "tmpfs", "-o", options, "none", mounts[key]], check=True)
        try:
            for each, script in {**PLAIN, **TORCH}.items():
                python = torch if each in TORCH else sys.executable
                rows.append(provoke(each, script, python, folder, mounts))
        finally:
            for mount in mounts.values():
                subprocess.run(["umount", mount], check=True)
    json.dump(rows, sys.stdout, indent=1, ensure_ascii=False)


if __name__ == "__main__":
    main()
