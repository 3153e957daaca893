"""What a server can do, found out by asking it to do harmless things, not by its version: forks and services differ.

Every question is a command on a key that does not exist, so that a server which knows it changes nothing. The two
answers that mean "cannot" are an unknown command and a syntax error; a refused permission counts as "cannot" too,
and is remembered, because the message must then say so. A server that is out of memory, read-only or cannot write
its log refuses before it looks at the options: that is no answer, and the weaker way, which every server can go, is
taken. One that cannot answer at all now (loading, cluster down, no password given) is an error of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Final

from millstream.client.calls import Word
from millstream.errors import CapabilityMissing, ServerReplied

_NOT_THERE: Final = (
    "unknown command",
    "syntax error",
    "unknown subcommand",
    "wrong number of arguments",
    "unbalanced",
    "unrecognized",
    "invalid stream id",
    "unsupported",
    "only available",
    "exclude_me",
)
_NO_ANSWER: Final = ("OOM", "MISCONF", "READONLY", "NOREPLICAS")
_NOT_NOW: Final = ("NOAUTH", "WRONGPASS", "LOADING", "BUSY", "CLUSTERDOWN", "MASTERDOWN", "TRYAGAIN")


@dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    """What the server has of what newer servers have."""

    nack: bool = False  # XNACK
    claim_read: bool = False  # XREADGROUP CLAIM
    ackdel: bool = False  # XACKDEL and XDELEX
    acked_trim: bool = False  # XADD/XTRIM ACKED
    idempotent_add: bool = False  # XADD IDMP
    max_size: bool = False  # XREADGROUP MAXSIZE
    set_many: bool = False  # MSETEX
    functions: bool = False  # FUNCTION, FCALL
    scripts: bool = False  # EVAL
    denied: Mapping[str, str] = field(default_factory=dict)  # what the user's permissions forbid, and the server's word

    def names(self) -> list[str]:
        """Those that it has, for people."""
        return [each.name for each in fields(self) if getattr(self, each.name) is True]

    def require_scripts(self, accept_weaker: bool) -> None:
        """Raise unless atomic steps can run, or their absence was accepted."""
        if self.scripts or accept_weaker:
            return
        why = self.denied.get("scripts", "the server does not know EVAL")
        raise CapabilityMissing(
            f"scripts cannot be run here ({why}), and without them no settlement is fenced or atomic: a worker that "
            "lost its lease could still acknowledge, and a crash between two commands could lose or repeat an entry. "
            "Allow EVAL and EVALSHA for this user, or pass accept_weaker=True (url: ?accept_weaker=yes) to read and "
            "publish only."
        )


def questions(key: bytes) -> dict[str, tuple[Word, ...]]:
    """Return the command to send for each capability; `key` must not exist; on a cluster it decides the node."""
    return {
        "nack": ("XNACK", key, "g", "SILENT", "IDS", 1, "0-1"),
        "claim_read": ("XREADGROUP", "GROUP", "g", "c", "CLAIM", 1, "STREAMS", key, ">"),
        "ackdel": ("XACKDEL", key, "g", "KEEPREF", "IDS", 1, "0-1"),
        "acked_trim": ("XTRIM", key, "MAXLEN", 1, "ACKED"),
        "idempotent_add": ("XADD", key, "NOMKSTREAM", "IDMP", "p", "i", "*", "f", "v"),
        "max_size": ("XREAD", "MAXSIZE", 1, "STREAMS", key, "0"),
        "set_many": ("MSETEX", 1, key, "v", "XX"),
        "functions": ("FCALL", "millstream_no_such_function", 1, key),
        "scripts": ("EVAL", "return 1", 0),  # no key: that the user may not touch this one says nothing
    }


def judge(answers: Mapping[str, Any], denied: Mapping[str, str]) -> Capabilities:
    """Conclude the capabilities from the answers: an exception of ours or a reply, by question.

    Raises an answer that is about the server's state and not about what it can do.
    """
    for name, answer in answers.items():
        if not isinstance(answer, ServerReplied):
            continue
        if answer.code in _NOT_NOW or (name == "scripts" and _is_there(answer) and name not in denied):
            raise answer
    known = {name: _is_there(answer) and name not in denied for name, answer in answers.items()}
    # what XNACK releases, only a CLAIM read finds at once
    known["nack"] = known.get("nack", False) and known.get("claim_read", False)
    return Capabilities(**known, denied=dict(denied))


def denials(answers: Mapping[str, Any]) -> dict[str, str]:
    """Return the questions that were refused for want of permission."""
    return {
        name: str(answer)
        for name, answer in answers.items()
        if isinstance(answer, ServerReplied) and answer.code == "NOPERM"
    }


def _is_there(answer: Any) -> bool:
    if not isinstance(answer, ServerReplied):
        return True
    text = str(answer).lower()
    return answer.code not in _NO_ANSWER and not any(sign in text for sign in _NOT_THERE)


def detect(ask: Callable[[Sequence[Word]], Any], key: bytes) -> Capabilities:
    """Ask one by one; `ask` answers with a reply or with the ServerReplied that came instead."""
    answers = {name: ask(words) for name, words in questions(key).items()}
    return judge(answers, denials(answers))
