"""Connecting: certificates, ALPN, names, addresses, endpoints, identities."""

import socket

import felix
import pytest

from conftest import ALL_RIGHTS, Scoped, connect
from processes import NAMESPACE, OTHER_TENANT, TENANT
from waiting import until

# Streams that the client authenticates when it connects (one asks for the topology), and for a second identity.
STREAMS_OF_A_CONNECT = 41
STREAMS_OF_AN_IDENTITY = 2


def exchange(client, stream, payload=b"there"):
    """Publishes and receives one record."""
    subscription = client.subscribe(stream)
    client.publish(stream, payload)
    assert subscription.next_event(10).payload == payload


def test_a_default_client_with_the_authoritys_certificate_connects(client, stream):
    exchange(client, stream)


@pytest.mark.parametrize("offer_alpn", [False, True])
def test_a_client_connects_whether_or_not_it_offers_the_protocol_by_name(face, broker, token, stream, offer_alpn):
    exchange(Scoped(connect(face, broker, token, offer_alpn=offer_alpn)), stream)


@pytest.mark.parametrize("name", ["localhost", "broker.example", "127.0.0.1"])
def test_every_name_of_the_certificate_is_a_server_name(face, broker, token, stream, name):
    exchange(Scoped(connect(face, broker, token, server_name=name)), stream)


def test_a_server_name_that_the_certificate_does_not_have_is_a_connection_error(face, broker, token):
    with pytest.raises(felix.ConnectionError):
        connect(face, broker, token, server_name="elsewhere.example")


def test_a_certificate_of_an_authority_the_client_does_not_know_is_a_connection_error(face, broker, token):
    with pytest.raises(felix.ConnectionError):
        face.connect(broker.addr, tenant_id=TENANT, token=token)


def test_a_host_name_is_resolved_to_the_ipv4_address(face, broker, token, stream):
    client = face.connect(f"localhost:{broker.port}", tenant_id=TENANT, token=token, ca_file=broker.ca_file)
    exchange(Scoped(client), stream)


def test_an_address_where_nobody_answers_is_passed_over(face, broker, token, stream):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as silent:
        silent.bind(("127.0.0.1", 0))
        nobody = "127.0.0.1:%d" % silent.getsockname()[1]
    addrs = [nobody, broker.addr]
    client = face.connect(addrs, tenant_id=TENANT, token=token, ca_file=broker.ca_file)
    exchange(Scoped(client), stream)


def test_the_endpoints_are_those_the_client_was_given(face, broker, token):
    client = connect(face, broker, token)
    assert [address.rsplit(":", 1)[1] for address in client.endpoints()] == [str(broker.port)]


def test_connecting_costs_one_connection_and_it_goes_with_the_client(quiet_broker):
    broker, token = quiet_broker, quiet_broker.plane.mint(ALL_RIGHTS)
    client = felix.Client(broker.addr, tenant_id=TENANT, token=token, ca_file=broker.ca_file)
    until("the connection is counted", lambda: broker.metric("connections") == 1)
    assert client.stream_shards(TENANT, NAMESPACE, "no-such-stream") == 0
    assert broker.metric("connections") == 1
    del client
    until("the connection is gone", lambda: broker.metric("connections") == 0)


def test_a_dropped_client_that_published_and_subscribed_leaves_nothing_behind(quiet_broker):
    broker, token = quiet_broker, quiet_broker.plane.mint(ALL_RIGHTS)
    stream = broker.create_stream("dropped", shards=4)
    make = lambda: Scoped(felix.Client(broker.addr, tenant_id=TENANT, token=token, ca_file=broker.ca_file))
    other, client = make(), make()
    plain, sharded = client.subscribe(stream), client.subscribe_sharded(stream)
    until("all subscriptions are counted", lambda: broker.metric("sub_active") == 5)
    until("both connections are counted", lambda: broker.metric("connections") == 2)
    del client, plain, sharded

    def gone():
        # The client notices that its subscriptions were dropped only while records reach them.
        for number in range(40):
            other.publish(stream, b"record", key=b"%d" % number)
        return broker.metric("connections") == 1

    until("the connection is gone", gone)
    until("the subscriptions are gone", lambda: broker.metric("sub_active") == 0)


def test_two_principals_share_a_connection_and_keep_their_own_rights(face, broker, stream):
    writer = broker.plane.mint([f"stream.publish:stream:{TENANT}/*/*"], principal="writer")
    reader = broker.plane.mint([f"stream.subscribe:stream:{TENANT}/*/*"], principal="reader")
    authenticated = broker.metric("auth_accepted_total")
    first = connect(face, broker, writer)
    assert broker.metric("auth_accepted_total") == authenticated + STREAMS_OF_A_CONNECT
    second = first.with_identity(TENANT, reader)
    assert broker.metric("auth_accepted_total") == authenticated + STREAMS_OF_A_CONNECT + STREAMS_OF_AN_IDENTITY
    writing, reading = Scoped(first), Scoped(second)
    subscription = reading.subscribe(stream)
    writing.publish(stream, b"from the writer")
    assert subscription.next_event(10).payload == b"from the writer"
    for refused in (lambda: reading.publish(stream, b"x"), lambda: writing.subscribe(stream)):
        with pytest.raises(felix.AuthError) as caught:
            refused()
        assert caught.value.code == "forbidden"
    writing.publish(stream, b"still working")
    assert subscription.next_event(10).payload == b"still working"


def test_two_tenants_share_a_connection_and_see_only_their_own_streams(face, broker, token, stream):
    broker.create_stream(stream, tenant=OTHER_TENANT)
    rights = [f"stream.publish:stream:{OTHER_TENANT}/*/*", f"stream.subscribe:stream:{OTHER_TENANT}/*/*"]
    other_token = broker.plane.mint(rights, tenant=OTHER_TENANT)
    ours = connect(face, broker, token)
    theirs = ours.with_identity(OTHER_TENANT, other_token)
    our_events = ours.subscribe(TENANT, NAMESPACE, stream)
    their_events = theirs.subscribe(OTHER_TENANT, NAMESPACE, stream)
    ours.publish(TENANT, NAMESPACE, stream, b"ours")
    theirs.publish(OTHER_TENANT, NAMESPACE, stream, b"theirs")
    assert our_events.next_event(10).payload == b"ours"
    assert their_events.next_event(10).payload == b"theirs"
    with pytest.raises(felix.AuthError) as caught:
        theirs.publish(TENANT, NAMESPACE, stream, b"crossing")
    assert caught.value.code == "forbidden"
    assert our_events.next_event(0.2) is None


def test_a_token_provider_is_asked_for_the_first_token(face, broker, stream):
    calls = []

    def provider():
        calls.append(1)
        return broker.plane.mint(ALL_RIGHTS)

    client = face.connect(broker.addr, tenant_id=TENANT, token_provider=provider, ca_file=broker.ca_file)
    exchange(Scoped(client), stream)
    assert len(calls) == 1
