"""How long tests wait for what has to come. The only purpose of it is that a test that hangs ends."""

from __future__ import annotations

HUNG_S = 120.0
"""What has not come by now never will, however busy the machine. Where it comes, this costs nothing."""
