"""Subscribing: where it starts, what it shows, how it ends."""

import felix
import pytest

from conftest import ALL_RIGHTS, Scoped, connect
from processes import NAMESPACE, OTHER_TENANT, TENANT
from test_publish import payloads
from waiting import until


def publish_numbers(client, stream, count, first=0):
    for number in range(first, first + count):
        client.publish(stream, b"%d" % number)


def numbers(first, end):
    return [b"%d" % number for number in range(first, end)]


def test_latest_begins_after_what_is_there(client, stream):
    publish_numbers(client, stream, 3)
    for start in (None, "latest"):
        subscription = client.subscribe(stream, start=start)
        client.publish(stream, b"new")
        assert payloads(subscription, 1) == [b"new"]


def test_earliest_begins_with_the_oldest_record_held_and_goes_on_live(client, stream):
    publish_numbers(client, stream, 50)
    subscription = client.subscribe(stream, start="earliest")
    publish_numbers(client, stream, 50, first=50)
    assert payloads(subscription, 100) == numbers(0, 100)


def test_earliest_on_an_empty_stream_waits_for_the_first_record(client, stream):
    subscription = client.subscribe(stream, start="earliest")
    assert subscription.next_event(0.2) is None
    client.publish(stream, b"first")
    assert payloads(subscription, 1) == [b"first"]


def test_an_offset_begins_with_that_record(client, stream):
    publish_numbers(client, stream, 20)
    assert payloads(client.subscribe(stream, start=7), 13) == numbers(7, 20)


def test_the_offset_of_the_next_record_is_valid_and_waits(client, stream):
    publish_numbers(client, stream, 4)
    subscription = client.subscribe(stream, start=4)
    assert subscription.next_event(0.2) is None
    client.publish(stream, b"4")
    assert payloads(subscription, 1) == [b"4"]


def test_an_offset_in_the_future_is_a_cursor_error(client, stream):
    publish_numbers(client, stream, 4)
    with pytest.raises(felix.CursorError) as caught:
        client.subscribe(stream, start=5)
    assert "5" in str(caught.value) and "4" in str(caught.value)
    client.publish(stream, b"after")


def test_an_offset_that_is_no_longer_held_is_a_cursor_error(face, small_ring):
    broker, stream, client = small_ring(face)
    with pytest.raises(felix.CursorError) as caught:
        client.subscribe(stream, start=3)
    assert "3" in str(caught.value) and "20" in str(caught.value)
    assert payloads(client.subscribe(stream, start=20), 16) == numbers(20, 36)
    assert payloads(client.subscribe(stream, start="earliest"), 16) == numbers(20, 36)


@pytest.fixture(scope="module")
def small_ring_broker(make_broker):
    return make_broker(settings={"replay_ring_max_records": 16})


@pytest.fixture
def small_ring(small_ring_broker):
    """A stream that holds 16 records and got 36."""
    broker = small_ring_broker

    def make(face):
        stream = broker.create_stream(f"ring-{face.name}")
        client = Scoped(connect(face, broker, broker.plane.mint(ALL_RIGHTS)))
        publish_numbers(client, stream, 36)
        return broker, stream, client

    return make


def test_an_event_names_where_it_came_from(client, stream):
    subscription = client.subscribe(stream)
    client.publish(stream, b"x")
    event = subscription.next_event(10)
    assert (event.tenant_id, event.namespace, event.stream) == (TENANT, NAMESPACE, stream)
    assert (event.offset, event.skipped_before) == (None, 0)


def test_waiting_for_an_event_that_does_not_come_ends_in_time(client, stream):
    assert client.subscribe(stream).next_event(0.1) is None


def test_an_unknown_stream_is_not_found(client):
    for subscribe in (client.subscribe, client.subscribe_sharded):
        with pytest.raises(felix.FelixError) as caught:
            subscribe("no-such-stream")
        assert isinstance(caught.value, felix.NotFoundError) or "no-such-stream" in str(caught.value)


def test_subscribing_to_an_unknown_stream_says_not_found_by_code(client):
    with pytest.raises(felix.NotFoundError) as caught:
        client.subscribe("no-such-stream")
    assert caught.value.code == "not_found"


def test_another_tenants_stream_is_refused(client, stream):
    with pytest.raises(felix.FelixError):
        client.inner.subscribe(OTHER_TENANT, NAMESPACE, stream)


def test_every_subscriber_gets_every_record(client, stream):
    subscriptions = [client.subscribe(stream) for _ in range(5)]
    publish_numbers(client, stream, 40)
    for subscription in subscriptions:
        assert payloads(subscription, 40) == numbers(0, 40)


def test_a_closed_subscription_ends_at_the_broker_once_records_flow(face, quiet_broker):
    broker = quiet_broker
    stream = broker.create_stream(f"closed-{face.name}")
    client = Scoped(connect(face, broker, broker.plane.mint(ALL_RIGHTS)))
    until("no subscription is left of other tests", lambda: broker.metric("sub_active") == 0)
    subscription = client.subscribe(stream)
    until("it is counted", lambda: broker.metric("sub_active") == 1)
    subscription.close()
    assert subscription.closed

    def gone():
        client.publish(stream, b"x")
        return broker.metric("sub_active") == 0

    until("it is gone", gone)


def test_many_subscriptions_on_one_client_all_work(client, broker, new_stream):
    streams = [new_stream() for _ in range(20)]
    subscriptions = [(stream, client.subscribe(stream)) for stream in streams for _ in range(5)]
    for stream in streams:
        client.publish(stream, stream.encode())
    for stream, subscription in subscriptions:
        assert payloads(subscription, 1) == [stream.encode()]


def test_the_number_of_shards_is_told_and_zero_for_an_unknown_stream(client, new_stream):
    for shards in (1, 4, 48):
        assert client.stream_shards(new_stream(shards=shards)) == shards
    assert client.stream_shards("no-such-stream") == 0


def test_a_sharded_subscription_reads_all_shards_and_knows_its_positions(client, new_stream):
    stream = new_stream(shards=4)
    subscription = client.subscribe_sharded(stream)
    assert subscription.shards == 4
    sent = {b"%d" % number for number in range(100)}
    for payload in sent:
        client.publish(stream, payload, key=payload)
    got = [subscription.next_event(10) for _ in sent]
    assert {item.event.payload for item in got} == sent
    assert subscription.next_event(0.1) is None


def test_a_sharded_subscription_from_earliest_gets_what_the_rings_hold(client, new_stream):
    stream = new_stream(shards=4)
    sent = {b"%d" % number for number in range(100)}
    for payload in sent:
        client.publish(stream, payload, key=payload)
    subscription = client.subscribe_sharded(stream, start="earliest")
    assert {subscription.next_event(10).event.payload for _ in sent} == sent


def test_a_sharded_subscription_resumes_each_listed_shard_behind_its_position(client, new_stream):
    stream = new_stream(shards=2)
    by_shard = {0: [], 1: []}
    watching = client.subscribe_sharded(stream)
    for number in range(40):
        client.publish(stream, b"%d" % number, key=b"%d" % number)
    for _ in range(40):
        item = watching.next_event(10)
        by_shard[item.shard].append(item.event.payload)
    resumed = client.subscribe_sharded(stream, resume={0: 4, 1: 9})
    expected = by_shard[0][5:] + by_shard[1][10:]
    assert sorted(resumed.next_event(10).event.payload for _ in expected) == sorted(expected)
    assert resumed.next_event(0.1) is None


@pytest.mark.parametrize("routing", ["modulo", "jump_hash"])
def test_keys_go_to_the_shard_of_the_streams_mapping(client, new_stream, routing):
    stream = new_stream(shards=3, routing=routing)
    expected = {
        b"a": {"modulo": 1, "jump_hash": 1},
        b"k0": {"modulo": 0, "jump_hash": 2},
        b"": {"modulo": 0, "jump_hash": 0},
        b"k1": {"modulo": 1, "jump_hash": 2},
    }
    subscription = client.subscribe_sharded(stream)
    for key in expected:
        client.publish(stream, key, key=key)
    got = {}
    for _ in expected:
        item = subscription.next_event(10)
        got[item.event.payload] = item.shard
    assert got == {key: shards[routing] for key, shards in expected.items()}
