"""Publishing: ack modes, keys, sizes, refusals."""

import os

import felix
import pytest

from conftest import Scoped, connect
from processes import NAMESPACE, OTHER_TENANT, TENANT
from waiting import until

MIB = 1 << 20
# The largest record that fits one frame beside the names and counts of these tests, with room for a key.
LARGEST = 16 * MIB - 1024

ACKS = ["none", "per_message", "per_batch"]
KEYS = {"no key": None, "empty key": b"", "key": b"customer-0", "binary key": bytes(range(256))}


def payloads(subscription, count, within=15.0):
    """The payloads of the next `count` events."""
    got = []
    while len(got) < count:
        event = subscription.next_event(within)
        assert event is not None, f"{len(got)} of {count} events came"
        got.append(event.payload)
    return got


@pytest.mark.parametrize("ack", ACKS)
@pytest.mark.parametrize("key", KEYS.values(), ids=KEYS.keys())
def test_a_record_arrives_in_every_ack_mode_with_and_without_a_key(client, stream, ack, key):
    subscription = client.subscribe(stream)
    for number in range(3):
        assert client.publish(stream, b"record %d" % number, key=key, ack=ack) is None
    assert payloads(subscription, 3) == [b"record 0", b"record 1", b"record 2"]


@pytest.mark.parametrize("ack", ACKS)
def test_keyed_records_arrive_over_four_shards_in_every_ack_mode(client, new_stream, ack):
    stream = new_stream(shards=4)
    subscription = client.subscribe_sharded(stream)
    sent = [b"record %d" % number for number in range(60)]
    for number, payload in enumerate(sent):
        client.publish(stream, payload, key=b"%d" % number, ack=ack)
    got = [subscription.next_event(15) for _ in sent]
    assert sorted(item.event.payload for item in got) == sorted(sent)
    assert {item.shard for item in got} == {0, 1, 2, 3}


def test_a_record_without_bytes_is_a_record(client, stream):
    subscription = client.subscribe(stream)
    for payload in (b"", b"between", b""):
        client.publish(stream, payload)
    assert payloads(subscription, 3) == [b"", b"between", b""]


@pytest.mark.parametrize("ack", ACKS)
@pytest.mark.parametrize("size", [MIB, 4 * MIB, LARGEST], ids=["1MiB", "4MiB", "16MiB"])
def test_large_records_arrive_whole(client, stream, ack, size):
    subscription = client.subscribe(stream)
    payload = os.urandom(MIB) * (size // MIB) + os.urandom(size % MIB)
    client.publish(stream, payload, ack=ack, key=b"k")
    event = subscription.next_event(30)
    assert event is not None and len(event.payload) == size
    assert event.payload == payload


def test_a_record_over_the_largest_frame_is_refused_and_does_not_hang(client, stream):
    subscription = client.subscribe(stream)
    with pytest.raises(felix.FelixError):
        client.publish(stream, bytes(16 * MIB + 1))
    client.publish(stream, b"after it")
    assert payloads(subscription, 1) == [b"after it"]


def test_several_large_records_in_a_row_arrive_in_order(client, stream):
    subscription = client.subscribe(stream)
    for number in range(8):
        client.publish(stream, bytes([number]) * (3 * MIB))
    got = payloads(subscription, 8, within=30)
    assert [(payload[0], len(payload)) for payload in got] == [(number, 3 * MIB) for number in range(8)]


def test_at_least_once_arrives(client, stream):
    subscription = client.subscribe(stream)
    client.publish(stream, b"surely", at_least_once=True)
    assert payloads(subscription, 1) == [b"surely"]


@pytest.mark.parametrize("ack", ["per_message", "per_batch"])
@pytest.mark.parametrize("key", [None, b"k"], ids=["no key", "key"])
def test_publishing_to_an_unknown_stream_is_not_found_and_the_client_goes_on(client, broker, stream, ack, key):
    client.publish(stream, b"before")
    authenticated = broker.metric("auth_accepted_total")
    for _ in range(3):
        with pytest.raises(felix.NotFoundError) as caught:
            client.publish("no-such-stream", b"x", ack=ack, key=key)
        assert (caught.value.code, caught.value.retry) == ("not_found", "retry_after")
    subscription = client.subscribe(stream)
    client.publish(stream, b"after")
    assert payloads(subscription, 1) == [b"after"]
    assert broker.metric("auth_accepted_total") < authenticated + 40, "the client threw its connection away"


def test_an_unacknowledged_publish_to_an_unknown_stream_is_dropped_and_counted(client, broker, stream):
    dropped = broker.metric("publish_dropped_total")
    client.publish("no-such-stream", b"x", ack="none")
    until("the drop is counted", lambda: broker.metric("publish_dropped_total") > dropped)
    subscription = client.subscribe(stream)
    client.publish(stream, b"after", ack="none")
    assert payloads(subscription, 1) == [b"after"]


def test_a_namespace_that_does_not_exist_is_not_found(face, broker, token, stream):
    client = connect(face, broker, token)
    with pytest.raises(felix.NotFoundError):
        client.publish(TENANT, "nowhere", stream, b"x")


def test_publishing_for_another_tenant_is_forbidden_and_the_client_goes_on(client, stream):
    for key in (None, b"k"):
        with pytest.raises(felix.AuthError) as caught:
            client.inner.publish(OTHER_TENANT, NAMESPACE, stream, b"x", key=key)
        assert caught.value.code == "forbidden"
    subscription = client.subscribe(stream)
    client.publish(stream, b"after")
    assert payloads(subscription, 1) == [b"after"]


def test_a_stream_made_after_it_was_missed_is_found(face, broker, token, stream):
    client = Scoped(connect(face, broker, token))
    name = f"late-{face.name}"
    with pytest.raises(felix.NotFoundError):
        client.publish(name, b"x")
    broker.create_stream(name, shards=4)
    subscription = client.subscribe_sharded(name)
    for number in range(20):
        client.publish(name, b"%d" % number, key=b"%d" % number)
    got = {subscription.next_event(10).event.payload for _ in range(20)}
    assert got == {b"%d" % number for number in range(20)}


def test_a_deleted_stream_refuses_publishes_and_ends_its_subscriptions(face, broker, token):
    client = Scoped(connect(face, broker, token))
    name = broker.create_stream(f"short-lived-{face.name}")
    plain, sharded = client.subscribe(name), client.subscribe_sharded(name)
    client.publish(name, b"last")
    assert plain.next_event(10).payload == b"last"
    assert sharded.next_event(10).event.payload == b"last"
    broker.delete_stream(name)
    assert isinstance(sharded.next_event(10), felix.StreamDeleted)
    until("the subscription is closed", lambda: plain.next_event(0.1) is None and plain.closed)
    with pytest.raises(felix.NotFoundError):
        client.publish(name, b"x")


def test_a_stream_made_again_under_its_name_starts_empty(face, broker, token):
    client = Scoped(connect(face, broker, token))
    name = broker.create_stream(f"twice-{face.name}")
    client.publish(name, b"of the first life")
    broker.delete_stream(name)
    broker.create_stream(name)
    subscription = client.subscribe(name, start="earliest")
    client.publish(name, b"of the second life")
    assert payloads(subscription, 1) == [b"of the second life"]
