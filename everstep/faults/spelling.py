"""One code, several spellings: `79`, `xid79` and `XID 79`; `0x80e01801` and `80E01801`.

A code of a switch between chips is a group of four: `[0x08520003,na,L2,na]`.
"""

from __future__ import annotations

import re

SXIDS_FROM = 10_000
"""A bare number below is an XID, from here on an SXID: NVIDIA gave neither of them the other's numbers."""


def canonical(code: str) -> str:
    """The spelling of the data files. Total: what looks like no code is only trimmed and in capitals."""
    text = code.strip().upper()
    if match := re.fullmatch(r"(S?XID)[\s:#_-]*(\d{1,6})", text):
        return f"{match[1]} {int(match[2])}"
    if re.fullmatch(r"\d{1,5}", text):
        return f"{'XID' if int(text) < SXIDS_FROM else 'SXID'} {int(text)}"
    if match := re.fullmatch(r"0X([0-9A-F]{1,8})", text):
        return match[1].zfill(8)
    if re.fullmatch(r"\[0X[0-9A-F]{8}(, *\w{1,12}){3}\]", text):
        return text.replace(" ", "").lower().replace("l2", "L2")
    return text
