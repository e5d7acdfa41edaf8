"""Builds the controller of JobSet from its Go module, once per machine."""

from __future__ import annotations

import sys

from benchmarks.peers.pods import JOBSET
from tests.testbed.build import BuildFailed

if __name__ == "__main__":
    try:
        JOBSET.build()
    except BuildFailed as error:
        sys.exit(f"error: {error}")
