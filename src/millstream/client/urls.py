"""What a URL says: where the streams are and how to get there. Opens nothing.

memory://[name]                       in this process, gone with it; one name is one broker
file:///dir[?appendfsync=always]      in this process, kept in a directory
redis:// rediss:// unix://            one server, in redis-py's own form
redis+cluster:// rediss+cluster://    a cluster: any of its nodes, several with commas
redis+sentinel://h1:26379,h2:26379/name[/db]
"""

from __future__ import annotations

from dataclasses import dataclass, field
from urllib.parse import parse_qsl, unquote, urlsplit

from millstream.errors import ConfigError

SCHEMES = (
    "memory",
    "file",
    "redis",
    "rediss",
    "unix",
    "redis+cluster",
    "rediss+cluster",
    "redis+sentinel",
    "rediss+sentinel",
)


@dataclass(frozen=True, slots=True)
class ServerUrl:
    """A URL taken apart."""

    scheme: str
    hosts: tuple[tuple[str, int], ...] = ()
    path: str = ""
    username: str | None = None
    password: str | None = field(default=None, repr=False)
    options: dict[str, str] = field(default_factory=dict)  # the query

    @property
    def is_embedded(self) -> bool:
        return self.scheme in ("memory", "file")

    @property
    def is_cluster(self) -> bool:
        return self.scheme.endswith("+cluster")

    @property
    def is_tls(self) -> bool:
        return self.scheme.startswith("rediss")


def parse_url(url: str) -> ServerUrl:
    """Parse a URL; raises ConfigError, which says what is wrong with it and never shows its password."""
    scheme, mark, rest = url.partition("://")
    if not mark or scheme not in SCHEMES:
        raise ConfigError(
            f"{hide_password(url)!r} is not the URL of a server: it must start with one of "
            + ", ".join(f"{name}://" for name in SCHEMES)
        )
    parts = urlsplit(f"x://{rest}")
    options = dict(parse_qsl(parts.query, keep_blank_values=True))
    user_info, _, host_list = parts.netloc.rpartition("@")
    username, _, password = user_info.partition(":")
    if scheme == "file" and (host_list or not parts.path.strip("/")):
        raise ConfigError(f"{url!r} names no directory: file:///absolute/path (three slashes)")
    if scheme in ("memory", "file"):
        return ServerUrl(
            scheme,
            path=unquote(parts.path or "") if scheme == "file" else unquote(host_list + parts.path),
            options=options,
        )
    port = 26379 if scheme.endswith("sentinel") else 6379
    return ServerUrl(
        scheme,
        tuple(_host(text, port, url) for text in host_list.split(",") if text) or (("localhost", port),),
        unquote(parts.path),
        unquote(username) or None,
        unquote(password) or None,
        options,
    )


def is_same_server(one: str, other: str) -> bool:
    """Whether two URLs lead to the same streams, whoever we say that we are. Names of hosts are taken as they stand."""
    a, b = parse_url(one), parse_url(other)
    if a.scheme != b.scheme or a.path.strip("/") != b.path.strip("/") or a.options.get("db") != b.options.get("db"):
        return False
    return bool(set(a.hosts) & set(b.hosts)) or (a.hosts == b.hosts)


def _host(text: str, default_port: int, url: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":") if not text.endswith("]") and ":" in text else (text, "", "")
    if port and not (port.isdigit() and 0 < int(port) < 65536):
        # without saying what stands there: a password with a slash in it, not written %2F, ends up here
        raise ConfigError(f"{hide_password(url)!r}: a port must be a number from 1 to 65535")
    return host.strip("[]") or "localhost", int(port or default_port)


def hide_password(url: str) -> str:
    """Return the URL for messages and logs. All before the last @ is hidden, also where a slash, ? or # stands
    in a password that should have been written in % form."""
    head, mark, rest = url.partition("://")
    user_info, at, host = rest.rpartition("@")
    if not at or ":" not in user_info:
        return url
    return f"{head}{mark}{user_info.partition(':')[0]}:***@{host}"
