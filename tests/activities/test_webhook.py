"""A notice is posted, and nothing that answers wrongly, late or not at all holds anybody up."""

from __future__ import annotations

import asyncio
import logging
import time

import pytest

from activities.webhook import THREADS, Webhook, exposes_token, problem
from everstep.processes import free_port
from tests.support.hook import Mood, hooked
from tests.support.patience import HUNG_S

MESSAGE = {"id": "demo/r1/3", "event": "JobStarted", "message": "läuft"}


async def test_a_notice_is_posted_as_json_with_the_token() -> None:
    async with hooked() as hook:
        assert await Webhook(url=hook.url, token="s3cret").take(MESSAGE)
    assert hook.taken == [MESSAGE]
    request, *headers = hook.heads[0].splitlines()
    assert request == "POST /notices?of=everstep HTTP/1.1"
    assert "Authorization: Bearer s3cret" in headers
    assert "Content-Type: application/json" in headers
    assert f"Host: 127.0.0.1:{hook.port}" in headers


@pytest.mark.parametrize(
    ("url", "is_exposed"),
    [
        ("http://hooks.example/in", True),
        ("HTTP://192.0.2.7:8080/in", True),
        ("http://localhost.example/", True),
        ("http://127.0.0.1.example/", True),
        ("http://0.0.0.0/", True),
        ("https://hooks.example/in", False),
        ("http://127.8.0.1:8080/in", False),
        ("http://[::1]/in", False),
        ("http://localhost/in", False),
    ],
)
def test_a_token_goes_over_plain_http_to_this_machine_alone(url: str, is_exposed: bool) -> None:
    assert exposes_token(url) is is_exposed


async def test_a_redirect_is_not_followed_with_the_token() -> None:
    async with hooked("moved") as hook:
        assert not await Webhook(url=hook.url, token="s3cret").take(MESSAGE)
    assert hook.asked == [MESSAGE]  # whoever follows posts it once more


async def test_without_a_token_none_is_sent() -> None:
    async with hooked() as hook:
        assert await Webhook(url=hook.url).take(MESSAGE)
    assert "authorization" not in hook.heads[0].lower()


@pytest.mark.parametrize("mood", ["fails", "moved", "talks nonsense", "hangs up"])
async def test_what_was_not_taken_is_said_at_once(mood: Mood) -> None:
    async with hooked(mood) as hook:
        assert not await Webhook(url=hook.url).take(MESSAGE)
    assert hook.asked == [MESSAGE]


@pytest.mark.parametrize("mood", ["hangs", "drips"])
async def test_an_answer_that_does_not_come_is_not_waited_for(mood: Mood) -> None:
    async with hooked(mood) as hook:
        began = time.monotonic()
        assert not await Webhook(url=hook.url).take(MESSAGE)
        assert time.monotonic() - began < HUNG_S


async def test_answers_that_never_end_leave_room_for_the_next_notice() -> None:
    async with hooked("drips") as hook:
        webhook = Webhook(url=hook.url)
        assert not any(await asyncio.gather(*(webhook.take(MESSAGE) for _ in range(2 * THREADS))))
        hook.mood = "takes"
        assert await webhook.take(MESSAGE)


@pytest.mark.parametrize("host", ["127.0.0.1", "nobody.invalid", "xn--" + "a" * 70])
async def test_nobody_there_is_not_taken(host: str) -> None:
    assert not await Webhook(url=f"http://{host}:{free_port()}/").take(MESSAGE)


async def test_a_plain_server_is_not_taken_for_a_secure_one() -> None:
    async with hooked() as hook:
        url = hook.url.replace("http:", "https:")
        assert not await Webhook(url=url, token="s3cret").take(MESSAGE)
    assert hook.taken == []


async def test_only_changes_are_logged_and_never_the_token(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.WARNING)
    async with hooked("fails") as hook:
        webhook = Webhook(url=hook.url, token="s3cret")
        for _ in range(3):
            await webhook.take(MESSAGE)
        hook.mood = "takes"
        await webhook.take(MESSAGE)
        hook.mood = "fails"
        await webhook.take(MESSAGE)
    assert len(caplog.records) == 2
    assert "503" in caplog.text
    assert "s3cret" not in caplog.text


@pytest.mark.parametrize(
    "url",
    [
        "ftp://example.com/",
        "example.com",
        "http://",
        "http://example.com:port/",
        "http://example.com/\r\nX: y",
        "http://me:secret@example.com/",
        "http://[::1",
    ],
)
def test_what_cannot_be_an_address_is_said(url: str) -> None:
    assert problem(url)


@pytest.mark.parametrize("url", ["http://example.com", "https://[::1]:8443/hook?a=b"])
def test_an_address_is_fine(url: str) -> None:
    assert problem(url) is None
