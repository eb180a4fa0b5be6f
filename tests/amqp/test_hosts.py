"""Virtual hosts, users and the consumer timeout of a broker that was configured."""

from __future__ import annotations

import stat
from collections.abc import Iterator
from pathlib import Path

import pika
import pytest
from pika.exceptions import ProbableAccessDeniedError, ProbableAuthenticationError

from headrace.errors import BadArgument
from headrace.server.amqp_users import AmqpUsers, credentials_of
from tests.amqp.raw import Basic, Channel, RawPeer, table
from tests.servers.headrace import headrace_server, listener_address
from tests.servers.process import RunningServer
from tests.waiting import eventually

pytestmark = pytest.mark.servers


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    users = tmp_path_factory.mktemp("users") / "users"
    users.write_text("# who may come\nann:secret\nbob:other:shop,tests\n")
    users.chmod(0o600)
    settings = {"amqp.vhosts": "shop,tests", "amqp.users.file": str(users), "amqp.consumer.timeout.ms": "300"}
    with headrace_server(arguments=["--amqp", "127.0.0.1:0"], settings=settings) as running:
        yield running


@pytest.fixture
def port(server: RunningServer) -> int:
    return int(listener_address(server.log, "amqp").rpartition(":")[2])


def connect(port: int, user: str, password: str, host: str) -> pika.BlockingConnection:
    login = pika.PlainCredentials(user, password)
    return pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", port, host, login))


def test_names_of_one_virtual_host_mean_nothing_in_another(port: int) -> None:
    shop, tests = connect(port, "ann", "secret", "shop").channel(), connect(port, "bob", "other", "tests").channel()
    for channel in (shop, tests):
        channel.exchange_declare("orders", "fanout", durable=True)
        channel.queue_declare("same", durable=True)
        channel.queue_bind("same", "orders")
    shop.confirm_delivery()
    shop.basic_publish("orders", "", b"for the shop")
    assert tests.basic_get("same")[0] is None
    assert shop.basic_get("same", auto_ack=True)[2] == b"for the shop"
    for channel in (shop, tests):
        channel.connection.close()


def test_users_come_in_with_their_own_password_and_to_their_own_hosts(port: int) -> None:
    for user, password in (("ann", "other"), ("bob", "secret"), ("guest", "guest"), ("", "")):
        with pytest.raises(ProbableAuthenticationError, match="Login was refused"):
            connect(port, user, password, "shop")
    with pytest.raises(ProbableAccessDeniedError, match="access to vhost '/' refused for user 'bob'"):
        connect(port, "bob", "other", "/")
    connect(port, "ann", "secret", "/").close()


def test_a_file_of_users_that_others_can_read_is_refused(tmp_path: Path) -> None:
    users = tmp_path / "users"
    users.write_text("ann:secret\n")
    users.chmod(0o644)
    with pytest.raises(BadArgument, match="can be read by others"):
        AmqpUsers.of(str(users), ["/"])
    users.chmod(stat.S_IRUSR)
    assert AmqpUsers.of(str(users), ["/"]).accept(b"ann", b"secret")
    users.chmod(0o600)
    users.write_text("no password here\n")
    with pytest.raises(BadArgument, match="line 1"):
        AmqpUsers.of(str(users), ["/"])


def test_a_user_of_a_virtual_host_that_is_not_configured_is_refused(tmp_path: Path) -> None:
    """Also a password with a colon, whose end would be taken for a virtual host."""
    users = tmp_path / "users"
    users.write_text("ann:secret:shop,/\nbob:pass:word\n")
    users.chmod(0o600)
    with pytest.raises(BadArgument, match="line 2, names virtual host 'word'") as refused:
        AmqpUsers.of(str(users), ["/", "shop"])
    assert "amqp.vhosts" in str(refused.value)
    users.write_text("ann:secret:shop, /\n")
    assert AmqpUsers.of(str(users), ["/", "shop"]).may_use("ann", "/")


def test_a_login_that_is_no_text_is_a_wrong_one() -> None:
    login = table(*(b"%c%bS\x00\x00\x00\x01\xff" % (len(name), name) for name in (b"LOGIN", b"PASSWORD")))[4:]
    user, password = credentials_of("AMQPLAIN", login)
    assert (user, password) == (b"\xff", b"\xff")
    assert not AmqpUsers().accept(user, password)


def test_a_message_that_is_kept_too_long_ends_its_channel_and_comes_back(port: int) -> None:
    other = connect(port, "ann", "secret", "shop").channel()
    other.queue_declare("stuck", durable=True)
    other.confirm_delivery()
    other.basic_publish("", "stuck", b"hard")
    peer = RawPeer(port)
    peer.login("ann", "secret")
    peer.tune()
    peer.open("shop")
    peer.method(1, Channel.Open())
    peer.expect(Channel.OpenOk)
    peer.method(1, Basic.Consume(queue="stuck"))
    peer.expect(Basic.Deliver)
    kind, code, text, *_ = peer.closed_with()
    assert (kind, code) == ("channel", 406)
    assert "delivery acknowledgement on channel 1 timed out. Timeout value used: 300 ms" in text
    peer.close()
    method, _, body = other.basic_get("stuck", auto_ack=True)
    assert (method.redelivered, body) == (True, b"hard")
    other.connection.close()


def test_what_newer_versions_of_rabbitmq_refuse_is_served_with_one_warning(port: int, server: RunningServer) -> None:
    connection = connect(port, "ann", "secret", "tests")
    channel = connection.channel()
    for name in ("transient-1", "transient-2"):
        channel.queue_declare(name)
    channel.basic_qos(prefetch_count=5, global_qos=True)
    warned = "is neither durable nor exclusive: it is served, and RabbitMQ 4.3 and newer refuse it"
    eventually(lambda: "basic.qos with global" in server.log.read_text())
    assert server.log.read_text().count(warned) == 1
    connection.close()
