"""The codec server: it opens payloads for those who may read them, and for no page of another origin."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.json_format import MessageToJson, Parse
from hypothesis import given
from hypothesis import strategies as st
from temporalio.api.common.v1 import Payload, Payloads

from everstep.encryption.codec import Codec, is_closed
from everstep.encryption.codec_server import Request, Response, Rules, answer
from everstep.encryption.keys import KeyFolder
from tests.support.keys import key_folder

SECRET = "hf_5ecre7-of-ada"
UI = "https://temporal.example.com"
OPEN, WITH_TOKEN = Rules(), Rules(token="t" * 16)
FOR_UI = Rules(origins=frozenset({UI}))


@pytest.fixture(scope="module")
def codec(tmp_path_factory: pytest.TempPathFactory) -> Codec:
    return Codec(KeyFolder(key_folder(tmp_path_factory.mktemp("keys") / "keys", "a")))


def request(codec: Codec, path: str = "/decode", **headers: str) -> Request:
    """A request to open a payload."""
    plain = Payload(metadata={"encoding": b"json/plain"}, data=f'"{SECRET}"'.encode())
    body = MessageToJson(Payloads(payloads=[codec.encrypted(plain), plain])).encode()
    return Request(method="POST", path=path, headers=headers, body=body)


def texts(response: Response) -> list[str]:
    assert response.status == 200, response.text
    return [payload.data.decode() for payload in Parse(response.text, Payloads()).payloads]


@pytest.mark.parametrize("path", ["/decode", "/default/decode", "/decode?namespace=default"])
def test_payloads_are_opened(codec: Codec, path: str) -> None:
    assert texts(answer(request(codec, path), OPEN, codec)) == [f'"{SECRET}"'] * 2


def test_what_is_encoded_can_be_decoded(codec: Codec) -> None:
    encoded = answer(request(codec, "/encode"), OPEN, codec)
    assert all(map(is_closed, Parse(encoded.text, Payloads()).payloads))
    twice = replace(request(codec), body=encoded.text.encode())
    once = answer(twice, OPEN, codec)
    (still_closed, opened) = Parse(once.text, Payloads()).payloads
    assert (is_closed(still_closed), opened.data) == (True, f'"{SECRET}"'.encode())


@pytest.mark.parametrize(
    ("authorization", "status"),
    [
        ("Bearer " + "t" * 16, 200),
        ("Bearer " + "t" * 15, 401),
        ("t" * 16, 401),
        ("Bearer ", 401),
        ("Bearer \udcff", 401),
        (None, 401),
    ],
    ids=ascii,
)
def test_without_the_token_nothing_is_opened(
    codec: Codec, authorization: str | None, status: int
) -> None:
    headers = {} if authorization is None else {"authorization": authorization}
    response = answer(request(codec, **headers), WITH_TOKEN, codec)
    assert (response.status, SECRET in response.text) == (status, False)


@pytest.mark.parametrize("method", ["POST", "OPTIONS", "GET"])
@pytest.mark.parametrize(
    "origin", ["https://evil.example", "http://127.0.0.1:8081", "null", f"{UI}.evil.example", ""]
)
def test_a_page_of_another_origin_gets_nothing(codec: Codec, origin: str, method: str) -> None:
    """Nor one whose name leads to loopback: its origin is that name."""
    response = answer(replace(request(codec, origin=origin), method=method), FOR_UI, codec)
    assert response.status == 403
    assert not [name for name in response.headers if name.startswith("Access-Control")]


def test_the_ui_may_ask_and_read(codec: Codec) -> None:
    headers = {"origin": UI, "access-control-request-private-network": "true"}
    preflight = replace(request(codec, **headers), method="OPTIONS", body=b"")
    allowed = answer(preflight, replace(FOR_UI, token="t" * 16), codec)  # a browser sends none here
    assert allowed.status == 204
    assert allowed.headers["Access-Control-Allow-Origin"] == UI
    assert allowed.headers["Access-Control-Allow-Private-Network"] == "true"
    assert "x-namespace" in allowed.headers["Access-Control-Allow-Headers"]
    read = answer(request(codec, origin=UI), FOR_UI, codec)
    assert (texts(read)[0], read.headers["Access-Control-Allow-Origin"]) == (f'"{SECRET}"', UI)


def test_what_does_not_open_is_a_sentence(codec: Codec, tmp_path: Path) -> None:
    other = Codec(KeyFolder(key_folder(tmp_path / "keys", "b")))
    response = answer(request(codec, origin=UI), FOR_UI, other)
    assert (response.status, "with key a, which this process does not have" in response.text) == (
        400,
        True,
    )
    assert response.headers["Access-Control-Allow-Origin"] == UI  # so that the page can show it


DEEP = '{"payloads":' + "[" * 5_000


@pytest.mark.parametrize(
    "body",
    ["", "{", '{"payloads": 3}', '{"x": []}', DEEP, "\udcff"],
    ids=lambda body: ascii(body[:20]),
)
def test_what_is_no_payload_is_a_sentence(codec: Codec, body: str) -> None:
    sent = replace(request(codec), body=body.encode(errors="surrogateescape"))
    response = answer(sent, OPEN, codec)
    assert (response.status, "no JSON of payloads" in response.text) == (400, True)


@pytest.mark.parametrize(
    ("method", "path"), [("GET", "/decode"), ("POST", "/"), ("POST", "/decoded")]
)
def test_anything_else_is_named(codec: Codec, method: str, path: str) -> None:
    response = answer(replace(request(codec, path), method=method), OPEN, codec)
    assert (response.status, "/decode or /encode" in response.text) == (404, True)


JSON: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["payloads", "metadata", "data", "encoding"]) | st.text(max_size=4),
            inner,
            max_size=3,
        )
    ),
    max_leaves=8,
)


@given(JSON, st.sampled_from(["/decode", "/encode"]))
def test_whatever_is_sent_is_answered(codec: Codec, value: object, path: str) -> None:
    sent = replace(request(codec, path), body=json.dumps(value).encode())
    assert answer(sent, OPEN, codec).status in (200, 400)
