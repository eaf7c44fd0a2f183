"""What is asked twice happens once."""

from __future__ import annotations

import pytest

from mbxd.mail import commands as c
from mbxd.mail.errors import MailRefused
from tests.mail.support import NOW, Mail, letter


def request(number: int = 1, digest: bytes = b"same", instance: str = "i") -> c.Request:
    return c.Request(instance, f"r{number}", digest)


def test_a_key_sends_once(mail: Mail) -> None:
    first = mail.sent(letter(key="k"))
    again = mail.sent(letter(key="k", now=NOW + 5))
    assert again == c.Sent(first.id, first.id, NOW, [2], duplicate=True)
    assert mail.inbox(2) == [first.id]
    other = mail.sent(letter(sender=3, key="k"))
    assert not other.duplicate


@pytest.mark.parametrize("other", [{"body": "b"}, {"to": (2, 3)}, {"needs_reply": True}, {"refs": ("x",)}])
def test_a_key_is_for_one_message(mail: Mail, other: dict[str, object]) -> None:
    mail.send(key="k")
    with pytest.raises(MailRefused) as refused:
        mail.send(key="k", **other)  # type: ignore[arg-type]
    assert refused.value.code == "KEY_REUSED"


def test_a_repeated_request_gets_the_first_result(mail: Mail) -> None:
    first = mail.sent(letter(), request())
    assert mail.sent(letter(now=NOW + 5), request()) == first
    assert mail.inbox(2) == [first.id]
    with pytest.raises(MailRefused) as refused:
        mail.sent(letter(), request(digest=b"other"))
    assert refused.value.code == "REQUEST_ID_REUSED"
    assert mail.sent(letter(), request(instance="j")).id != first.id


def test_every_result_can_be_kept(mail: Mail) -> None:
    message = mail.send(needs_reply=True, held=(c.Role(1, "r"),))
    commands: list[c.Command] = [
        c.Ack(2, (message,), NOW),
        c.Deliver(2, (message,), NOW),
        c.ReleaseHeld(1, "r", 5),
        c.Notice("gone", message, 2, 1, "s", "b", NOW, bytes(10), 1),
        c.Prune(NOW, NOW),
    ]
    for number, command in enumerate(commands):
        first = mail.store.call(command, request(number))
        assert mail.store.call(command, request(number)) == first


def test_refusals_are_not_kept(mail: Mail) -> None:
    with pytest.raises(MailRefused):
        mail.sent(letter(reply_to="nothing"), request())
    assert mail.sent(letter(), request()).id


def test_the_last_results_of_an_instance_are_kept(mail: Mail, path: str) -> None:
    first = [mail.sent(letter(), request(number)).id for number in range(c.REPLIES_KEPT + 2)]
    mail.close()
    mail.store = mail.store.open(path)
    assert mail.sent(letter(), request(2)).id == first[2]
    assert mail.sent(letter(), request(1)).id not in first
    assert mail.sent(letter(), request(2)).id not in first  # pushed out by the one before
    assert mail.store.call(c.Forget("i")) == c.Forgotten(c.REPLIES_KEPT)
    assert mail.sent(letter(), request(9)).id not in first
