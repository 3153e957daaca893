"""Scripts by the hash of their text, compiled once.

Those that EVAL brought are forgotten when there are many, the ones not used for longest first; those of SCRIPT LOAD
stay until SCRIPT FLUSH.
"""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import sha1
from typing import Final

from millstream.engine.faults import fault
from millstream.engine.outcome import Reply
from millstream.errors import CommandError, ScriptError
from millstream.server.protocol.resp import split_words
from millstream.server.scripting.runner import Runner, ScriptCall

FLAGS: Final = ("no-writes", "allow-oom", "allow-stale", "no-cluster", "allow-cross-slot-keys")
_MAX_PASSING: Final = 500  # scripts of EVAL that are kept


@dataclass(slots=True)
class CachedScript:
    """A script that can be run."""

    sha: bytes
    flags: frozenset[str] | None  # None: it has no first line that declares them
    is_loaded: bool  # by SCRIPT LOAD


class Scripts:
    """The scripts of a hub."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        self._by_sha: dict[bytes, CachedScript] = {}
        self._passing: dict[bytes, None] = {}  # those of EVAL, the one used last at the end

    def __contains__(self, sha: bytes) -> bool:
        return sha.lower() in self._by_sha

    def __len__(self) -> int:
        return len(self._by_sha)

    def load(self, body: bytes, *, is_loaded: bool) -> CachedScript:
        """Keep a script; raises what is wrong with it."""
        sha = sha1(body, usedforsecurity=False).hexdigest().encode()
        script = self._by_sha.get(sha)
        if script is None:
            script = self._by_sha[sha] = self._compiled(sha, body)
            self._passing[sha] = None
            self._forget_some()
        if is_loaded:
            script.is_loaded = True
            self._passing.pop(sha, None)
        return script

    def _compiled(self, sha: bytes, body: bytes) -> CachedScript:
        flags, text = parted(body)
        try:
            problem = self._runner.interpreter.compile(sha, text)
        except ScriptError as error:  # no memory is left
            raise fault(error.text) from error
        if problem is not None:
            raise fault(b"ERR Error compiling script (new function): " + problem)
        return CachedScript(sha, flags, False)

    def _forget_some(self) -> None:
        while len(self._passing) > _MAX_PASSING:
            self._forget(next(iter(self._passing)))

    def _forget(self, sha: bytes) -> None:
        del self._by_sha[sha]
        self._passing.pop(sha, None)
        self._runner.interpreter.forget(sha)

    def clear(self) -> None:
        """Forget all scripts."""
        for sha in list(self._by_sha):
            self._forget(sha)

    def find(self, sha: bytes) -> CachedScript | None:
        """Find a script by its hash, in either case."""
        return self._by_sha.get(sha.lower())

    def flags_of(self, word: bytes, *, is_body: bool) -> frozenset[str]:
        """Return the flags of a script by its body or hash; no flags if it is unknown or cannot be parsed."""
        if not is_body:
            script = self.find(word)
            return script.flags or frozenset() if script is not None else frozenset()
        try:
            return parted(word)[0] or frozenset()
        except CommandError:
            return frozenset()

    def run(
        self,
        call: ScriptCall,
        script: CachedScript,
        keys: list[bytes],
        words: list[bytes],
        *,
        is_read_only: bool = False,
    ) -> Reply:
        """Run a script; raises the error that it ends with."""
        if script.sha in self._passing:
            self._passing[script.sha] = self._passing.pop(script.sha)
        protocol = call.protocol
        return self._runner.run(
            call,
            script.sha,
            lambda lua: lua.run(script.sha, keys, words, protocol),
            flags=script.flags,
            is_read_only=is_read_only,
        )


def parted(body: bytes) -> tuple[frozenset[str] | None, bytes]:
    """Return the flags of a first line like `#!lua flags=no-writes`, and the text with its line numbers kept."""
    if not body.startswith(b"#!"):
        return None, body
    line, newline, rest = body.partition(b"\n")
    words = split_words(line)
    if not newline or words is None:
        raise fault("ERR Invalid script shebang")
    if words[0] != b"#!lua":
        raise fault(b"ERR Unexpected engine in script shebang: " + words[0])
    flags: set[str] = set()
    for word in words[1:]:
        if not word.startswith(b"flags="):
            raise fault(b"ERR Unknown lua shebang option: " + word)
        given = word.removeprefix(b"flags=")
        flags.update(_flag(name) for name in given.split(b",") if given)
    return frozenset(flags), newline + rest


def _flag(name: bytes) -> str:
    text = name.decode("latin-1")
    if text not in FLAGS:
        raise _unknown_flag(name)
    return text


def _unknown_flag(name: bytes) -> CommandError:
    return fault(b"ERR Unexpected flag in script shebang: " + name)
