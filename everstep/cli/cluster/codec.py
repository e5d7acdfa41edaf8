"""The command `codec-server`: opens encrypted payloads for the Temporal UI and the `temporal` CLI."""

from __future__ import annotations

import ipaddress
import os
import re
from pathlib import Path
from typing import Annotated

import typer

from everstep.client.exit_codes import Exit, Failed
from everstep.encryption.codec import Codec
from everstep.encryption.codec_server import CodecServer, Rules
from everstep.encryption.keys import VARIABLE, KeyFolder, read_secret

PORT_MAX = 65_535
ORIGIN = re.compile(r"https?://[a-z0-9.:\[\]-]+")


def codec_server(
    origins: Annotated[
        list[str] | None,
        typer.Option(
            "--origin", help="The Temporal UI's origin, https://temporal.example.com; repeatable."
        ),
    ] = None,
    host: Annotated[str, typer.Option(help="The address where it listens.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=PORT_MAX, help="Its port; 0: a free one.")] = 8081,
    token_file: Annotated[
        Path | None,
        typer.Option(
            envvar="EVERSTEP_CODEC_TOKEN_FILE",
            help="A file with the token that requests have to show; needed beyond loopback.",
        ),
    ] = None,
) -> None:
    """Open encrypted payloads for the Temporal UI and the temporal command line, until Ctrl-C.

    The keys are those of the folder that EVERSTEP_PAYLOAD_KEYS names. Who reaches this server reads every
    payload that they can get: run it on your own machine, or give it a token.

    For the command line: temporal workflow show -w demo --codec-endpoint http://127.0.0.1:8081, with a
    token also --codec-auth "Bearer TOKEN". It decrypts what is shown, and encrypts what is sent.

    For the UI: name its origin here with --origin, and in the UI, under the glasses at its top right, the
    endpoint http://127.0.0.1:8081. The UI sends no token of yours: a server for a team belongs behind a
    proxy that checks its users, has a certificate and adds the token.
    """
    folder = os.environ.get(VARIABLE, "")
    if not folder:
        raise Failed(Exit.USAGE, f"{VARIABLE} names no folder of keys, so nothing is encrypted")
    rules = Rules(origins=_checked(origins or []), token=_token(token_file))
    if not rules.token and not _is_loopback(host):
        problem = (
            f"beyond loopback, at {host}, everybody could read: give a token with --token-file"
        )
        raise Failed(Exit.USAGE, problem)
    codec = Codec(KeyFolder(Path(folder)))
    try:
        server = CodecServer((host, port), rules, codec)
    except OSError as error:
        raise Failed(Exit.USAGE, f"{host} port {port} cannot be served: {error.strerror}") from None
    with server:
        print(f"payloads are opened at http://{host}:{server.server_port}; Ctrl-C ends", flush=True)
        server.serve_until_signal()


def _checked(origins: list[str]) -> frozenset[str]:
    """The origins as browsers send them. Raises `Failed`."""
    for origin in origins:
        if not ORIGIN.fullmatch(origin):
            hint = "give scheme and host alone, as https://temporal.example.com"
            raise Failed(Exit.USAGE, f"--origin {origin!a} is no origin; {hint}")
    return frozenset(origins)


def _token(path: Path | None) -> str:
    if path is None:
        return ""
    token = read_secret(path)
    if not re.fullmatch(r"[\x21-\x7e]{16,}", token):
        raise Failed(Exit.USAGE, f"{path} holds no token: 16 or more printable characters")
    return token


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
