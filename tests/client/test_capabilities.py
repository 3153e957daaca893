"""What is concluded from a server's answers."""

from __future__ import annotations

import pytest

from millstream.client.capabilities import Capabilities, denials, judge, questions
from millstream.errors import CapabilityMissing, ServerReplied

ALL = dict.fromkeys(questions(b"k"), b"anything")


def judged(**changes: object) -> Capabilities:
    answers = {**ALL, **changes}
    return judge(answers, denials(answers))


def test_a_reply_means_that_it_can() -> None:
    assert judged().names() == [
        "nack",
        "claim_read",
        "ackdel",
        "acked_trim",
        "idempotent_add",
        "max_size",
        "set_many",
        "functions",
        "scripts",
    ]


def test_an_error_about_the_key_means_that_it_can() -> None:
    assert judged(ackdel=ServerReplied("NOGROUP No such key 'k'")).ackdel


@pytest.mark.parametrize(
    "text",
    [
        "ERR unknown command 'XNACK', with args beginning with: ",
        "ERR syntax error",
        "ERR Invalid stream ID specified as stream command argument",
        "ERR wrong number of arguments for 'xadd' command",
    ],
)
def test_an_unknown_command_or_option_means_that_it_cannot(text: str) -> None:
    assert not judged(idempotent_add=ServerReplied(text)).idempotent_add


@pytest.mark.parametrize("code", ["OOM", "MISCONF", "READONLY", "NOREPLICAS"])
def test_a_refusal_that_comes_before_the_options_are_read_is_no_yes(code: str) -> None:
    assert not judged(idempotent_add=ServerReplied(f"{code} not now")).idempotent_add


@pytest.mark.parametrize("code", ["LOADING", "CLUSTERDOWN", "NOAUTH", "BUSY"])
def test_a_server_that_cannot_answer_is_no_weak_server(code: str) -> None:
    with pytest.raises(ServerReplied) as caught:
        judged(nack=ServerReplied(f"{code} later"))
    assert caught.value.code == code


def test_a_refused_permission_is_remembered() -> None:
    found = judged(ackdel=ServerReplied("NOPERM this user may not"))
    assert not found.ackdel
    assert found.denied == {"ackdel": "NOPERM this user may not"}


def test_releasing_needs_the_read_that_finds_what_was_released() -> None:
    assert not judged(claim_read=ServerReplied("ERR syntax error")).nack


def test_no_scripts_is_an_error_that_says_what_is_lost_and_how_to_accept_it() -> None:
    found = judged(scripts=ServerReplied("NOPERM User u has no permissions to run the 'eval' command"))
    with pytest.raises(CapabilityMissing) as caught:
        found.require_scripts(accept_weaker=False)
    for words in ("NOPERM User u", "fenced", "accept_weaker=True", "EVALSHA"):
        assert words in str(caught.value)
    found.require_scripts(accept_weaker=True)


def test_a_server_without_scripts_is_told_from_one_that_fails() -> None:
    assert not judged(scripts=ServerReplied("ERR unknown command 'EVAL'")).scripts
    with pytest.raises(ServerReplied, match="ERR odd"):
        judged(scripts=ServerReplied("ERR odd"))
