"""Clients as they are: redis-py (threads and asyncio), redis-cli, redis-benchmark, ioredis; TCP, unix socket, TLS."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
import redis.asyncio
from redis.backoff import NoBackoff
from redis.retry import Retry

from millstream.errors import ConfigError
from millstream.server.config.settings import Config
from millstream.server.net.tls import server_context
from tests.support import npm, redis_tools
from tests.support.certificates import Certificates, make_certificates
from tests.support.ours import Ours, eventually, serving

NO_RETRY = Retry(NoBackoff(), 0)


@pytest.fixture
def ours() -> Iterator[Ours]:
    with serving() as server:
        yield server


@pytest.fixture(scope="session")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return make_certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture
def secure(certificates: Certificates) -> Iterator[Ours]:
    """A server that wants clients to show certificates."""
    with serving(tls_port=0, **tls_settings(certificates)) as server:
        yield server


def tls_settings(certificates: Certificates, **more: str) -> dict[str, str]:
    return {
        "tls_cert_file": str(certificates.certificate),
        "tls_key_file": str(certificates.key),
        "tls_ca_cert_file": str(certificates.authority),
        **more,
    }


def tls_options(ours: Ours, certificates: Certificates, *, shows: bool = True) -> dict[str, Any]:
    own = {"ssl_certfile": str(certificates.client_certificate), "ssl_keyfile": str(certificates.client_key)}
    return {
        "host": "127.0.0.1",
        "port": ours.listener.tls[0][1],
        "ssl": True,
        "ssl_ca_certs": str(certificates.authority),
        "retry": NO_RETRY,
        **(own if shows else {}),
    }


@pytest.fixture(params=["tcp", "unix", "tls"])
def way(request: pytest.FixtureRequest) -> Iterator[dict[str, Any]]:
    """The options of redis-py for each way to reach a server."""
    if request.param == "tls":
        secure = request.getfixturevalue("secure")
        yield tls_options(secure, request.getfixturevalue("certificates"))
        return
    ours = request.getfixturevalue("ours")
    yield {"port": ours.port} if request.param == "tcp" else {"unix_socket_path": str(ours.unix_socket)}


@pytest.mark.parametrize("protocol", [2, 3])
def test_redis_py_works(way: dict[str, Any], protocol: int) -> None:
    client = redis.Redis(**way, protocol=protocol, socket_timeout=60)
    assert client.xgroup_create("s", "g", mkstream=True)
    with client.pipeline(transaction=True) as pipeline:
        for number in range(500):
            pipeline.xadd("s", {"n": number})
        ids = pipeline.execute()
    assert len(ids) == 500
    found = client.xreadgroup("g", "c", {"s": ">"}, count=100)
    entries = found[b"s"] if isinstance(found, dict) else found[0][1]
    flat = entries[0] if isinstance(entries[0], list) else entries  # redis-py nests RESP3's
    assert [entry[0] for entry in flat] == ids[:100]
    assert client.xack("s", "g", *ids[:100]) == 100
    assert client.xlen("s") == 500
    with pytest.raises(redis.ResponseError, match="WRONGTYPE"):
        client.lpush("s", "x")
    assert not client.xread({"s": "$"}, block=10)
    assert client.info()["redis_version"] == "8.10.0"
    client.close()


async def next_message(listener: redis.asyncio.client.PubSub) -> dict[str, Any]:
    for _ in range(12):
        message = await listener.get_message(timeout=5)
        if message is not None:
            return message
    raise TimeoutError


@pytest.mark.parametrize("protocol", [2, 3])
def test_redis_py_works_in_asyncio(way: dict[str, Any], protocol: int) -> None:
    async def program() -> None:
        async with redis.asyncio.Redis(**way, protocol=protocol, socket_timeout=60) as client:
            await client.xgroup_create("s", "g", mkstream=True)
            reads = [client.xreadgroup("g", f"c{n}", {"s": ">"}, count=1, block=20_000) for n in range(8)]
            readers = [asyncio.create_task(read) for read in reads]
            while (await client.info("clients"))["blocked_clients"] < 8:
                await asyncio.sleep(0.005)
            await asyncio.gather(*(client.xadd("s", {"n": n}) for n in range(8)))
            found = await asyncio.gather(*readers)
            assert len({repr(one) for one in found}) == 8
            async with client.pubsub() as listener:
                await listener.subscribe("c")
                assert (await next_message(listener))["type"] == "subscribe"
                await client.publish("c", "hello")
                assert (await next_message(listener))["data"] == b"hello"

    asyncio.run(program())


# TLS


def test_a_client_without_a_certificate_is_turned_away(secure: Ours, certificates: Certificates) -> None:
    stranger = redis.Redis(**tls_options(secure, certificates, shows=False))
    with pytest.raises((redis.ConnectionError, ssl.SSLError)):
        stranger.ping()
    assert redis.Redis(**tls_options(secure, certificates)).ping()
    assert eventually(lambda: secure.server.connections <= 1)


@pytest.mark.parametrize("choice", ["no", "optional"])
def test_a_certificate_may_be_left_to_the_client(certificates: Certificates, choice: str) -> None:
    settings = tls_settings(certificates, tls_auth_clients=choice, tls_protocols="TLSv1.3")
    settings |= {"tls_key_file": str(certificates.locked_key), "tls_key_file_pass": "secret"}
    with serving(tls_port=0, **settings) as ours:
        assert redis.Redis(**tls_options(ours, certificates, shows=False)).ping()


def test_plain_requests_to_a_secure_port_harm_nobody(secure: Ours, certificates: Certificates) -> None:
    with pytest.raises(redis.ConnectionError):
        redis.Redis(port=secure.listener.tls[0][1], retry=NO_RETRY, socket_timeout=60).ping()
    assert redis.Redis(**tls_options(secure, certificates)).ping()


@pytest.mark.parametrize(
    ("changed", "error"),
    [
        ({"tls-cert-file": ""}, "tls-port needs tls-cert-file"),
        ({"tls-key-file": "/no/such/key"}, "tls-key-file: there is no file /no/such/key"),
        ({"tls-ca-cert-file": ""}, "tls-port needs tls-ca-cert-file, or `tls-auth-clients no`"),
        ({"tls-key-file": "locked", "tls-key-file-pass": "wrong"}, "tls-key-file"),
        ({"tls-key-file": "locked"}, "tls-key-file"),
        ({"tls-key-file": "other"}, "KEY_VALUES_MISMATCH|mismatch"),
        ({"tls-protocols": "TLSv1.1"}, "tls-protocols: 'tlsv1.1' is not spoken here"),
        ({"tls-ciphers": "NOPE"}, "tls-ciphers: none of 'NOPE' is known"),
    ],
)
def test_tls_settings_that_cannot_work_are_named(
    certificates: Certificates, changed: dict[str, str], error: str
) -> None:
    files = {"locked": str(certificates.locked_key), "other": str(certificates.client_key)}
    settings = {name.replace("_", "-"): value for name, value in tls_settings(certificates).items()}
    settings |= {name: files.get(value, value) for name, value in changed.items()}
    with pytest.raises(ConfigError, match=error) as raised:
        server_context(Config(settings))
    assert "wrong" not in str(raised.value)


# Other programs


def cli(ours: Ours, *words: str, data: bytes = b"") -> str:
    return redis_tools.run("redis-cli", "-p", str(ours.port), *words, data=data)


def test_redis_cli_works(ours: Ours) -> None:
    assert cli(ours, "PING") == "PONG\n"
    assert cli(ours, "XADD", "s", "1-1", "f", "a b") == "1-1\n"
    assert cli(ours, "-3", "XRANGE", "s", "-", "+") == "1-1\nf\na b\n"
    assert '2) 1) "f"\n' in cli(ours, "--no-raw", "XRANGE", "s", "-", "+")
    assert "redis_version:8.10.0" in cli(ours, "INFO", "server")
    assert redis_tools.run("redis-cli", "-s", str(ours.unix_socket), "XLEN", "s") == "1\n"
    assert "errors: 0, replies: 3" in cli(ours, "--pipe", data=b"SET a 1\r\nSET b 2\r\nINCR a\r\n")
    assert cli(ours, data=b"MULTI\nINCR a\nINCR a\nEXEC\n") == "OK\nQUEUED\nQUEUED\n3\n4\n"
    assert "s" in cli(ours, "--scan")
    assert eventually(ours.is_deserted)


def test_redis_cli_shows_the_syntax_of_a_command(ours: Ours) -> None:
    shown = " ".join(cli(ours, "HELP", "XADD").split())
    assert "key [NOMKSTREAM] [KEEPREF|DELREF|ACKED]" in shown
    assert "field value [field value ...]" in shown


def test_redis_cli_works_over_tls(secure: Ours, certificates: Certificates) -> None:
    files = [
        "--cert",
        str(certificates.client_certificate),
        "--key",
        str(certificates.client_key),
        "--cacert",
        str(certificates.authority),
    ]
    port = str(secure.listener.tls[0][1])
    assert redis_tools.run("redis-cli", "-h", "127.0.0.1", "-p", port, "--tls", *files, "PING") == "PONG\n"


def test_redis_benchmark_works(ours: Ours) -> None:
    common = ("-p", str(ours.port), "-n", "2000", "-c", "20", "-q")
    text = redis_tools.run("redis-benchmark", *common, "-P", "16", "XADD", "s", "*", "f", "v")
    assert "requests per second" in text
    cli(ours, "XGROUP", "CREATE", "s", "g", "0")
    read = ("XREADGROUP", "GROUP", "g", "c", "COUNT", "1", "STREAMS", "s", ">")
    assert "requests per second" in redis_tools.run("redis-benchmark", *common, *read)
    assert cli(ours, "XPENDING", "s", "g").startswith("2000\n")
    assert "requests per second" in redis_tools.run("redis-benchmark", *common, "-t", "ping,set,get,lpush,incr")
    assert eventually(ours.is_deserted)


IOREDIS = """
const Redis = require("ioredis");
const [port, path] = process.argv.slice(-2);
const main = async () => {
  const client = new Redis(Number(port)), other = new Redis(path);
  await client.xgroup("CREATE", "s", "g", "$", "MKSTREAM");
  const waiting = client.duplicate();
  const reading = waiting.xreadgroup("GROUP", "g", "c", "BLOCK", 10000, "STREAMS", "s", ">");
  const id = await other.xadd("s", "*", "name", "caf\\u00e9");
  const [[stream, [[read, fields]]]] = await reading;
  const replies = await client.pipeline().xack("s", "g", read).xlen("s").get("missing").incr("n").exec();
  const changed = await client.multi().set("k", "v").get("k").exec();
  let error = "";
  await client.lpush("s", "x").catch(e => { error = e.message; });
  const heard = new Promise(done => other.on("message", (channel, text) => done([channel, text])));
  await other.subscribe("news");
  await client.publish("news", "hello");
  client.defineCommand("twice", {numberOfKeys: 0, lua: "return ARGV[1]"});
  console.log(JSON.stringify({
    same: id === read, stream, fields, replies: replies.map(r => r[1]), changed: changed.map(r => r[1]), error,
    heard: await heard,
  }));
  [client, other, waiting].forEach(c => c.disconnect());
};
main().catch(e => { console.error(e); process.exit(1); });
"""


def test_ioredis_works(ours: Ours) -> None:
    found = json.loads(npm.run_with("ioredis", IOREDIS, str(ours.port), str(ours.unix_socket)))
    assert found == {
        "same": True,
        "stream": "s",
        "fields": ["name", "café"],
        "replies": [1, 1, None, 1],
        "changed": ["OK", "v"],
        "heard": ["news", "hello"],
        "error": "WRONGTYPE Operation against a key holding the wrong kind of value",
    }
    assert eventually(ours.is_deserted)


def test_the_tools_say_where_they_are_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redis_tools, "_unpacked", lambda: None)
    monkeypatch.delenv("CI", raising=False)
    with pytest.raises(pytest.skip.Exception, match="redis-nothing"):
        redis_tools.tool("redis-nothing")
