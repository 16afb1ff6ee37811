"""Each public call of the published client, once, against `felix dev`, in both of its forms; the other tests look closer."""

import itertools
import pathlib
import time

import felix
import pytest

from test_dev import Dev

_NUMBERS = itertools.count()


@pytest.fixture(scope="module")
def calls_dev(tmp_path_factory):
    made = Dev(tmp_path_factory.mktemp("dev"))
    made.run("stream", "create", "durable", "--shards", "2", "--durable")
    made.run("cache", "create", "cache", "--shards", "2")
    made.run("cache", "create", "single", "--shards", "1")
    yield made
    assert made.stop() == 0


@pytest.fixture
def scope(calls_dev):
    ready = calls_dev.ready
    return ready["tenant"], ready["namespace"]


@pytest.fixture
def client(calls_dev, face):
    return calls_dev.connect(face).inner


@pytest.fixture
def stream(calls_dev):
    """A durable stream of one shard that nothing was published to."""
    name = f"s{next(_NUMBERS)}"
    calls_dev.run("stream", "create", name, "--shards", "1", "--durable")
    return name


@pytest.fixture
def group(client, scope, stream):
    """A group of that stream, with three records; the arguments that name it."""
    for number in range(3):
        client.publish(*scope, stream, b"%d" % number)
    return (*scope, stream, 0, "g")


def test_endpoints_are_those_that_were_given(client, calls_dev):
    assert client.endpoints() == [calls_dev.ready["broker_addr"]]


ACKS = [("none", False), ("per_message", False), ("per_batch", False), ("per_message", True)]


@pytest.mark.parametrize("ack, at_least_once", ACKS)
def test_publish_gives_the_offset_of_a_record_that_is_acknowledged(client, scope, stream, ack, at_least_once):
    subscription = client.subscribe(*scope, stream)
    offset = client.publish(*scope, stream, b"x", ack=ack, at_least_once=at_least_once)
    event = subscription.next_event(10)
    assert (event.tenant_id, event.namespace, event.stream) == (*scope, stream)
    assert (event.payload, event.offset, event.skipped_before) == (b"x", 0, 0)
    assert offset == (None if ack == "none" else 0)


def test_publish_puts_records_of_one_key_into_one_shard_in_their_order(client, scope):
    subscription = client.subscribe_sharded(*scope, "durable")
    assert subscription.shards == 2
    sent = {b"key-%d" % key: [b"%d %d" % (key, at) for at in range(5)] for key in range(8)}
    for key, payloads in sent.items():
        for payload in payloads:
            client.publish(*scope, "durable", payload, key=key)
    got, shards = {}, {}
    while sum(map(len, got.values())) < 40:
        record = subscription.next_event(10)
        key = b"key-" + record.event.payload.split()[0]
        got.setdefault(key, []).append(record.event.payload)
        shards.setdefault(key, set()).add(record.shard)
    assert got == sent and all(len(of_key) == 1 for of_key in shards.values())
    assert set.union(*shards.values()) == {0, 1}
    positions = subscription.positions()
    subscription.close()
    assert set(positions) == {0, 1}
    offset = client.publish(*scope, "durable", b"later")
    again = client.subscribe_sharded(*scope, "durable", resume=positions)
    record = again.next_event(10)
    assert (record.shard, record.event.offset, record.event.payload) == (0, offset, b"later")
    again.close()


def test_subscribe_begins_where_it_is_told_and_ends_when_it_is_closed(client, scope, stream):
    for number in range(3):
        client.publish(*scope, stream, b"%d" % number)
    subscriptions = [client.subscribe(*scope, stream, start=start) for start in ("earliest", 1, None, "latest")]
    client.publish(*scope, stream, b"3")
    assert [subscription.next_event(10).payload for subscription in subscriptions] == [b"0", b"1", b"3", b"3"]
    assert subscriptions[2].next_event(0.1) is None and not subscriptions[2].closed
    with pytest.raises(felix.CursorError):
        client.subscribe(*scope, stream, start=99)
    subscriptions[2].close()
    subscriptions[2].close()
    assert subscriptions[2].next_event(5) is None and subscriptions[2].closed


def test_stream_shards_tells_the_width_and_zero_for_none(client, scope, stream):
    assert [client.stream_shards(*scope, name) for name in ("durable", stream, "nowhere")] == [2, 1, 0]


def test_with_identity_acts_as_another_over_the_same_connections(client, calls_dev, scope, stream):
    token = pathlib.Path(calls_dev.ready["token_file"]).read_text().strip()
    other = client.with_identity(scope[0], token)
    assert other.publish(*scope, stream, b"x") == 0
    with pytest.raises(felix.AuthError):
        client.with_identity(scope[0], "no token")
    assert client.publish(*scope, stream, b"x") == 1


def test_a_client_asks_its_token_provider(calls_dev, face, scope, stream):
    asked = []

    def provide():
        asked.append(pathlib.Path(calls_dev.ready["token_file"]).read_text().strip())
        return asked[-1]

    client = calls_dev.connect(face, token_provider=provide).inner
    assert client.publish(*scope, stream, b"x") == 0 and asked


def test_cache_calls_put_read_and_remove_a_value(client, scope):
    key = f"k{next(_NUMBERS)}"
    assert client.cache_get(*scope, "cache", key) is None
    client.cache_put(*scope, "cache", key, b"one")
    assert client.cache_get(*scope, "cache", key) == b"one"
    assert client.cache_delete(*scope, "cache", key) == b"one"
    assert client.cache_delete(*scope, "cache", key) is None
    client.cache_put(*scope, "cache", key, b"brief", ttl=0.5)
    assert client.cache_get(*scope, "cache", key) == b"brief"
    time.sleep(0.7)
    assert client.cache_get(*scope, "cache", key) is None


def test_counter_calls_add_and_tell_never_written_from_zero(client, scope):
    key = f"n{next(_NUMBERS)}"
    assert client.counter_get(*scope, "cache", key) is None
    assert client.counter_add(*scope, "cache", key, 5) == 5
    assert client.counter_add(*scope, "cache", key, -5) == 0
    assert client.counter_get(*scope, "cache", key) == 0


def test_group_poll_hands_out_what_is_unclaimed_and_waits_no_longer_than_told(client, group):
    records = client.group_poll(*group, max_records=2, wait=5.0, consumer="a")
    assert [(record.offset, record.payload, record.attempts) for record in records] == [(0, b"0", 1), (1, b"1", 1)]
    assert all(record.skipped_before == 0 for record in records)
    assert [record.offset for record in client.group_poll(*group, wait=0)] == [2]
    began = time.monotonic()
    assert client.group_poll(*group, wait=0.5) == []
    assert 0.3 < time.monotonic() - began < 10
    # What it holds on this connection is not taken from it (semantics 5); on another one: test_groups.py.
    assert client.group_poll(*group, wait=0, consumer="a", reclaim=True) == []


def test_group_ack_finishes_and_group_nack_hands_back(client, group):
    first, second, third = client.group_poll(*group)
    client.group_ack(*group, first.offset)
    client.group_nack(*group, second)
    (again,) = client.group_poll(*group, wait=5.0)
    assert (again.offset, again.attempts) == (second.offset, 2)
    with pytest.raises(felix.FelixError):
        client.group_nack(*group, second)
    client.group_ack(*group, third.offset)
    client.group_ack(*group, again.offset)
    assert client.group_poll(*group, wait=0) == []


def test_group_dead_letters_are_listed_put_back_and_dropped(client, group):
    assert client.group_dead_letters(*group) == []
    (record,) = client.group_poll(*group, max_records=1)
    while record.offset not in client.group_dead_letters(*group):
        client.group_nack(*group, record)
        polled = client.group_poll(*group, max_records=1, wait=1.0)
        if not polled or polled[0].offset != 0:
            break
        (record,) = polled
    assert client.group_dead_letters(*group) == [0]
    client.group_redrive(*group, 0)
    assert client.group_dead_letters(*group) == []
    records = client.group_poll(*group, wait=1.0)
    assert [(r.offset, r.attempts) for r in records if r.offset == 0] == [(0, 1)], "its attempts begin again"
    with pytest.raises(felix.NotFoundError):
        client.group_discard(*group, 0)
    (record,) = [record for record in records if record.offset == 0]
    while client.group_dead_letters(*group) != [0]:
        client.group_nack(*group, record)
        polled = [again for again in client.group_poll(*group, wait=0.5) if again.offset == 0]
        record = polled[0] if polled else record
    client.group_discard(*group, 0)
    assert client.group_dead_letters(*group) == []
    assert client.subscribe(*group[:3], start="earliest").next_event(10).payload == b"0", "the record is still there"


def test_commit_writes_an_event_and_state_get_reads_what_it_put(client, scope, stream):
    event, kept = felix.CommitOp.publish(stream, b"event"), felix.CommitOp.put(stream, "k", b"v")
    receipt = client.commit(*scope, b"entity", [event, kept])
    found = client.state_get(*scope, stream, b"entity", "k")
    assert (receipt.offset, found.value, found.version, found.as_of) == (0, b"v", 0, 0)
    gone = [felix.CommitOp.enqueue(stream, b"work"), felix.CommitOp.delete(stream, "k")]
    assert client.commit(*scope, b"entity", gone).offset == 1
    found = client.state_get(*scope, stream, b"entity", "k")
    assert (found.value, found.version, found.as_of) == (None, None, 1)
    with pytest.raises(felix.EventCountError):
        client.commit(*scope, b"entity", [kept])
    with pytest.raises(felix.NotOnOwningShardError):
        client.commit(*scope, b"entity", [event, felix.CommitOp.put("durable", "k", b"v")])


def test_a_watch_tells_changes_live_from_an_offset_and_after_the_current_values(client, scope):
    key, prefix = felix.CacheWatchFilter.key, felix.CacheWatchFilter.prefix
    name = f"watched{next(_NUMBERS)}"
    watch = client.watch_cache(*scope, "cache", key(name))
    assert (watch.resnapshot, watch.retained_count) == (False, None)
    client.cache_put(*scope, "cache", name, b"one")
    change = watch.recv(20)
    assert (change.key, change.value, change.expires_at_millis) == (name, b"one", 0)
    assert change.offset >= watch.resume_offset
    client.cache_delete(*scope, "cache", name)
    assert watch.recv(20).value is None
    watch.close()
    again = client.watch_cache(*scope, "cache", key(name), start=change.offset)
    assert again.recv(20).value == b"one"
    client.cache_put(*scope, "cache", name, b"two")
    kept = client.watch_cache(*scope, "cache", key(name), retained=True)
    assert (kept.retained_count, kept.recv(20).value) == (1, b"two")
    everything = client.watch_cache(*scope, "single", prefix(""))
    client.cache_put(*scope, "single", name, b"three")
    assert everything.recv(20).value == b"three"
    everything.close()


def _public(kind):
    return {name for name in dir(kind) if not name.startswith("_")}


def test_every_call_of_the_client_is_made_here():
    made = pathlib.Path(__file__).read_text()
    kinds = [
        (felix.Client, felix.AsyncClient),
        (felix.CacheWatchHandle, felix.AsyncCacheWatch),
        (felix.SubscriptionHandle, felix.AsyncSubscription),
        (felix.ShardedSubscriptionHandle, felix.AsyncShardedSubscription),
        (felix.CommitOp, felix.CommitOp),
    ]
    for kind, its_async in kinds:
        names = _public(kind) | _public(its_async)
        missing = {name for name in names if f".{name}" not in made}
        assert not missing, (kind, missing)
