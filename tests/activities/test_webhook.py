"""A notice is posted. A webhook that answers wrongly, late or not at all delays nothing."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import json
import logging
import time
from pathlib import Path

import pytest

from activities.message_templates import TEMPLATES, rendered, template
from activities.webhook import THREADS, Webhook, exposes_token, problem, secret_bytes
from everstep.processes import free_port
from tests.support.hook import Mood, hooked
from tests.support.patience import HUNG_S

MESSAGE = {"id": "demo/r1/3", "event": "JobStarted", "message": "läuft"}


async def test_a_notice_is_posted_as_json_with_the_token() -> None:
    async with hooked() as hook:
        assert await Webhook(url=hook.url, token="s3cret").take(MESSAGE)
    assert hook.accepted == [MESSAGE]
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
    assert hook.received == [MESSAGE]  # whoever follows posts it once more


async def test_without_a_token_none_is_sent() -> None:
    async with hooked() as hook:
        assert await Webhook(url=hook.url).take(MESSAGE)
    assert "authorization" not in hook.heads[0].lower()


@pytest.mark.parametrize("mood", ["fails", "moved", "talks nonsense", "hangs up"])
async def test_what_was_not_taken_is_said_at_once(mood: Mood) -> None:
    async with hooked(mood) as hook:
        assert not await Webhook(url=hook.url).take(MESSAGE)
    assert hook.received == [MESSAGE]


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
    assert hook.accepted == []


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


async def test_the_time_without_a_taken_notice_begins_with_the_first_try_in_vain() -> None:
    begin = time.monotonic()
    async with hooked("fails") as hook:
        webhook = Webhook(url=hook.url)
        assert webhook.unreachable_s() == 0.0
        await webhook.take(MESSAGE)
        first = webhook.unreachable_s()
        await webhook.take(MESSAGE)
        assert 0.0 < first < webhook.unreachable_s() <= time.monotonic() - begin
        hook.mood = "takes"
        await webhook.take(MESSAGE)
    assert webhook.unreachable_s() == 0.0


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


# -- Signature ------------------------------------------------------------------------------------

SECRET = "whsec_" + base64.b64encode(b"thirty-two bytes that are secret").decode()


def header(head: str, name: str) -> str:
    lines = dict(line.partition(": ")[::2] for line in head.splitlines()[1:] if line)
    return lines[name]


async def test_a_message_is_signed_as_standard_webhooks_says() -> None:
    async with hooked() as hook:
        assert await Webhook(url=hook.url, secret=secret_bytes(SECRET)).take(MESSAGE)
    (head,), (body,) = hook.heads, hook.bodies
    delivery, at = header(head, "webhook-id"), header(head, "webhook-timestamp")
    assert delivery == MESSAGE["id"]
    assert abs(int(at) - time.time()) < HUNG_S
    signed = f"{delivery}.{at}.".encode() + body
    expected = hmac.new(b"thirty-two bytes that are secret", signed, hashlib.sha256).digest()
    assert header(head, "webhook-signature") == f"v1,{base64.b64encode(expected).decode()}"


async def test_without_a_secret_a_message_has_its_delivery_id_and_no_signature() -> None:
    message = {**MESSAGE, "id": "jöb/r1/3"}
    async with hooked() as hook:
        assert await Webhook(url=hook.url).take(message)
    assert header(hook.heads[0], "webhook-id") == "j%C3%B6b/r1/3"
    assert "webhook-signature" not in hook.heads[0]


async def test_a_delivery_keeps_its_id_over_repeats() -> None:
    async with hooked("fails") as hook:
        webhook = Webhook(url=hook.url, secret=secret_bytes(SECRET))
        assert not await webhook.take(MESSAGE)
        hook.mood = "takes"
        assert await webhook.take(MESSAGE)
    assert len({header(head, "webhook-id") for head in hook.heads}) == 1
    assert hook.bodies[0] == hook.bodies[1]


@pytest.mark.parametrize("text", ["short", "whsec_no base64", "whsec_c2hvcnQ=", "x" * 23])
def test_a_secret_that_is_too_weak_or_unreadable_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="24"):
        secret_bytes(text)


def test_a_secret_of_any_other_shape_is_taken_as_it_is() -> None:
    assert secret_bytes("a long enough sentence to sign with") == (
        b"a long enough sentence to sign with"
    )


# -- Templates ------------------------------------------------------------------------------------

INCIDENT = {
    "id": "demo/r1/7",
    "job": "demo",
    "event": "JobRestarted",
    "level": "Info",
    "message": 'restarted <!channel> & "more"',
    "text": 'demo: restarted <!channel> & "more"',
}


def test_slack_shows_what_was_said_and_calls_nobody() -> None:
    body = rendered(TEMPLATES["slack"], INCIDENT)
    assert body["text"] == 'demo: restarted &lt;!channel&gt; &amp; "more"'


@pytest.mark.parametrize("name", sorted(TEMPLATES))
def test_each_template_is_whole_json_with_the_text_in_it(name: str) -> None:
    assert "demo: restarted" in json.dumps(rendered(TEMPLATES[name], INCIDENT))


def test_discord_calls_nobody_either() -> None:
    assert rendered(TEMPLATES["discord"], INCIDENT)["allowed_mentions"] == {"parse": []}


def test_a_template_of_ones_own_is_json_with_names_in_braces(tmp_path: Path) -> None:
    file = tmp_path / "own.json"
    file.write_text('{"summary": "{job} {event}", "fields": [{"raw": "{message}"}], "n": 1}')
    body = rendered(template(str(file)), INCIDENT)
    assert body == {
        "summary": "demo JobRestarted",
        "fields": [{"raw": 'restarted <!channel> & "more"'}],
        "n": 1,
    }


@pytest.mark.parametrize(
    ("content", "why"),
    [
        ("{job}", "JSON"),
        ('["{job}"]', "object"),
        ('{"text": "{jobs}"}', "jobs"),
        ('{"text": "{job.__class__}"}', "job.__class__"),
        (None, "slack"),
    ],
)
def test_a_template_that_cannot_be_used_is_refused_with_what_is_wrong(
    content: str | None, why: str, tmp_path: Path
) -> None:
    file = tmp_path / "own.json"
    if content is not None:
        file.write_text(content)
    with pytest.raises(ValueError, match=why):
        template(str(file))


async def test_a_webhook_posts_what_its_template_makes_of_a_message() -> None:
    async with hooked() as hook:
        webhook = Webhook(url=hook.url, template=TEMPLATES["slack"])
        assert await webhook.take({**MESSAGE, "text": "demo: läuft"})
    assert hook.accepted == [{"text": "demo: läuft"}]
    assert header(hook.heads[0], "webhook-id") == MESSAGE["id"]
