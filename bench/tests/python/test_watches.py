"""Watches of caches, with logs and in memory: live, from an offset, with the current values, slow ones, the broker's death."""

import asyncio
import gc
import itertools
import time

import felix
import pytest

from conftest import connect
from processes import NAMESPACE, TENANT
from waiting import Job, until

S = (TENANT, NAMESPACE)
RIGHTS = [f"cache.read:cache:{TENANT}/*/*", f"cache.write:cache:{TENANT}/*/*"]
KEY, PREFIX = felix.CacheWatchFilter.key, felix.CacheWatchFilter.prefix


@pytest.fixture(scope="module", params=["with logs", "in memory"])
def kept(request):
    return request.param


@pytest.fixture(scope="module")
def watch_broker(kept, make_broker):
    return make_broker(cores=3, stored=kept == "with logs")


@pytest.fixture(scope="module")
def watch_token(watch_broker):
    return watch_broker.plane.mint(RIGHTS, ttl=3600)


@pytest.fixture
def client(face, watch_broker, watch_token):
    return connect(face, watch_broker, watch_token)


_NUMBERS = itertools.count()


@pytest.fixture
def cache(watch_broker):
    return watch_broker.create_cache(f"w{next(_NUMBERS)}")


def shown(item):
    assert isinstance(item, felix.CacheChange), item
    return item.key, item.value, item.offset


def take(watch, count):
    """The next changes of a watch, as `(key, value, offset)`."""
    return [shown(watch.recv(20)) for _ in range(count)]


def nothing_comes(watch):
    """Nothing for a while, whichever way the client says so."""
    try:
        assert watch.recv(0.2) is None
    except TimeoutError:
        pass


def test_changes_of_a_key_or_prefix_are_told_with_their_offsets(client, cache):
    client.cache_put(*S, cache, "room/1", b"before")
    one = client.watch_cache(*S, cache, KEY("room/1"))
    rooms = client.watch_cache(*S, cache, PREFIX("room/"))
    every = client.watch_cache(*S, cache, PREFIX(""))
    for watch in (one, rooms, every):
        assert (watch.resnapshot, watch.retained_count) == (False, None)
        assert watch.resume_offset == one.resume_offset
    at = one.resume_offset
    client.cache_put(*S, cache, "room/1", b"one")
    client.cache_put(*S, cache, "room/2", b"")
    client.cache_put(*S, cache, "door", bytes(range(256)))
    client.cache_delete(*S, cache, "room/1")
    client.counter_add(*S, cache, "room/1", 1)
    assert take(one, 2) == [("room/1", b"one", at), ("room/1", None, at + 3)]
    assert take(rooms, 3) == [("room/1", b"one", at), ("room/2", b"", at + 1), ("room/1", None, at + 3)]
    assert [key for key, _, _ in take(every, 4)] == ["room/1", "room/2", "door", "room/1"]
    client.cache_put(*S, cache, "end", b"v", ttl=3600)
    end = every.recv(20)
    assert end.key == "end" and abs(end.expires_at_millis / 1000 - time.time() - 3600) < 60
    nothing_comes(one)
    nothing_comes(rooms)


def test_a_watch_from_an_offset_replays_what_is_not_seen_and_goes_on(client, cache, kept):
    first = client.watch_cache(*S, cache, PREFIX(""))
    at = first.resume_offset
    for number in range(2_000):
        client.cache_put(*S, cache, f"k{number % 7}", b"%d" % number)
    again = client.watch_cache(*S, cache, KEY("k3"), start=at + 5)
    assert (again.resume_offset, again.resnapshot) == (at + 5, False), kept
    offsets = [offset - at for _, _, offset in take(again, 285)]
    assert offsets == list(range(10, 2_000, 7))
    client.cache_put(*S, cache, "k3", b"live")
    assert take(again, 1) == [("k3", b"live", at + 2_000)]
    with pytest.raises(felix.CursorError):
        client.watch_cache(*S, cache, KEY("k3"), start=at + 2_002)
    tail = client.watch_cache(*S, cache, KEY("k3"), start=at + 2_001)
    client.cache_put(*S, cache, "k3", b"last")
    assert take(tail, 1) == [("k3", b"last", at + 2_001)]


def test_the_current_values_come_first_with_their_number(client, cache):
    for number in range(500):
        client.cache_put(*S, cache, f"k{number:03}", b"old")
        client.cache_put(*S, cache, f"k{number:03}", b"%d" % number)
    client.cache_delete(*S, cache, "k007")
    client.cache_put(*S, cache, "over", b"v", ttl=0.0)
    watch = client.watch_cache(*S, cache, PREFIX("k"), retained=True)
    assert (watch.retained_count, watch.resnapshot) == (499, False)
    values = take(watch, 499)
    assert sorted((key, value) for key, value, _ in values) == [
        (f"k{number:03}", b"%d" % number) for number in range(500) if number != 7
    ]
    assert all(offset < watch.resume_offset for _, _, offset in values)
    client.cache_put(*S, cache, "k007", b"new")
    assert take(watch, 1) == [("k007", b"new", watch.resume_offset)]
    assert client.watch_cache(*S, cache, KEY("none"), retained=True).retained_count == 0
    one = client.watch_cache(*S, cache, KEY("k499"), retained=True)
    assert one.retained_count == 1
    assert take(one, 1)[0][:2] == ("k499", b"499")


def test_what_makes_no_sense_is_not_there_or_is_not_allowed_is_told(face, client, watch_broker, cache):
    with pytest.raises((ValueError, felix.FelixError)):
        client.watch_cache(*S, cache, KEY("k"), start=0, retained=True)
    with pytest.raises(felix.NotFoundError):
        client.watch_cache(*S, "nowhere", KEY("k"))
    wide = watch_broker.create_cache(f"{cache}-wide", shards=3)
    with pytest.raises(felix.FelixError) as caught:
        client.watch_cache(*S, wide, PREFIX("k"))
    assert caught.value.code == "invalid_request", caught.value
    keys = {f"k{number}": client.watch_cache(*S, wide, KEY(f"k{number}")) for number in range(12)}
    for key in keys:
        client.cache_put(*S, wide, key, key.encode())
    for key, watch in keys.items():
        assert take(watch, 1)[0][:2] == (key, key.encode())
    long = "k" * 65_536
    with pytest.raises(felix.FelixError):
        client.watch_cache(*S, cache, KEY(long))
    for key in ["", "k" * 65_535, "\u00e4\U0001f600\0"]:
        watch = client.watch_cache(*S, cache, KEY(key))
        client.cache_put(*S, cache, key, b"v")
        assert take(watch, 1)[0][:2] == (key, b"v")
    rights = [f"cache.read:cache:{TENANT}/{NAMESPACE}/{cache}/mine/*"]
    narrow = connect(face, watch_broker, watch_broker.plane.mint(rights, ttl=3600))
    for filter_ in [KEY("yours"), PREFIX("mine"), PREFIX("")]:
        with pytest.raises(felix.AuthError):
            narrow.watch_cache(*S, cache, filter_)
    mine = narrow.watch_cache(*S, cache, PREFIX("mine/1"))
    client.cache_put(*S, cache, "mine/2", b"v")
    client.cache_put(*S, cache, "mine/1", b"v")
    assert take(mine, 1)[0][0] == "mine/1"


def test_a_closed_watch_is_gone_from_the_broker_and_the_others_go_on(client, watch_broker, cache):
    gc.collect()
    until("those of other tests are gone", lambda: watch_broker.metric("cache_watches") == 0)
    watches = [client.watch_cache(*S, cache, KEY("k")) for _ in range(40)]
    until("they are there", lambda: watch_broker.metric("cache_watches") == 40)
    for watch in watches[1:]:
        watch.close()
    until("one is left", lambda: watch_broker.metric("cache_watches") == 1)
    client.cache_put(*S, cache, "k", b"v")
    assert take(watches[0], 1)[0][:2] == ("k", b"v")
    watches[0].close()


def test_one_that_does_not_read_holds_nobody_up(face, client, watch_broker, watch_token, cache, kept):
    slow_client = connect(face, watch_broker, watch_token)
    slow = slow_client.watch_cache(*S, cache, PREFIX(""))
    quick = client.watch_cache(*S, cache, PREFIX(""))
    # More than the client takes unread (64 MiB and 256 events), the queues and what a shard in memory keeps.
    value, count = b"v" * 100_000, 1_000
    reading = Job(lambda: take(quick, count))
    for number in range(count):
        client.cache_put(*S, cache, f"k{number % 3}", value)
    assert [offset for _, _, offset in reading.result(60)] == list(
        range(quick.resume_offset, quick.resume_offset + count)
    )
    seen = []
    while len(seen) < count:
        item = slow.recv(20)
        if isinstance(item, felix.CacheWatchLagged):
            # With logs too, when they were compacted meanwhile: three keys are all that lives in 100 MB.
            assert item.resume_from == slow.resume_offset + len(seen)
            assert slow.recv(20) is None, "nothing comes behind the end"
            return
        seen.append(shown(item)[2])
    assert kept == "with logs", "in memory it must lag"
    assert seen == list(range(slow.resume_offset, slow.resume_offset + count))


def test_a_deleted_cache_ends_its_watches(client, watch_broker, cache):
    watch = client.watch_cache(*S, cache, KEY("k"))
    client.cache_put(*S, cache, "k", b"v")
    watch_broker.delete_cache(cache)
    assert take(watch, 1)[0][:2] == ("k", b"v")
    assert watch.recv(20) is None


def test_a_watch_is_taken_up_again_after_each_kill_and_misses_nothing(make_broker, face):
    broker = make_broker(cores=2, settings={"fsync": "on_commit", "segment_bytes": "1MiB", "commit_slot_bytes": "1MiB", "disk_low": "64MiB"})
    token = broker.plane.mint(RIGHTS, ttl=3600)
    cache = broker.create_cache("killed")
    client = connect(face, broker, token)
    seen, next_ = [], 0
    for round_ in range(4):
        watch = until("it is served again", lambda: _watch(client, cache, next_))
        assert (watch.resume_offset, watch.resnapshot) == (next_, False)
        for number in range(100):
            _put(client, cache, f"{round_}-{number}")
        for _ in range(60):
            key, _value, offset = shown(watch.recv(20))
            seen.append((offset, key))
            next_ = offset + 1
        broker.kill()
        while isinstance(item := watch.recv(20), felix.CacheChange):
            seen.append((item.offset, item.key))
            next_ = item.offset + 1
        broker.start()
        broker.serves_caches()
    watch = until("it is served again", lambda: _watch(client, cache, next_))
    _put(client, cache, "end")
    while seen[-1][1] != "end":
        seen.append((lambda item: (item.offset, item.key))(watch.recv(20)))
    offsets = [offset for offset, _ in seen]
    assert offsets == sorted(set(offsets)), "in order, and each once"
    keys = [key for _, key in seen]
    for round_, number in itertools.product(range(4), range(100)):
        assert f"{round_}-{number}" in keys, "every write that was answered is there"
    everything = client.watch_cache(*S, cache, PREFIX(""), start=0)
    assert [(offset, key) for key, _, offset in take(everything, len(seen))] == seen


def _watch(client, cache, start):
    try:
        return client.watch_cache(*S, cache, PREFIX(""), start=start)
    except felix.FelixError:
        return None


def _put(client, cache, key):
    """Writes it until it is answered: a write that was made twice is two changes."""

    def put():
        try:
            client.cache_put(*S, cache, key, b"v")
        except felix.FelixError:
            return False
        return True

    until("it is written", put, within=40)


def test_both_forms_of_the_client_read_a_watch_with_for_and_with(watch_broker, watch_token):
    cache = watch_broker.create_cache(f"w{next(_NUMBERS)}")
    options = {"tenant_id": TENANT, "token": watch_token, "ca_file": watch_broker.ca_file}
    plain = felix.Client(watch_broker.addr, **options)
    with plain.watch_cache(*S, cache, PREFIX("")) as watch:
        for number in range(3):
            plain.cache_put(*S, cache, f"k{number}", b"v")
        assert [item.key for item in itertools.islice(watch, 3)] == ["k0", "k1", "k2"]

    async def run():
        client = await felix.AsyncClient.connect(watch_broker.addr, **options)
        async with await client.watch_cache(*S, cache, PREFIX(""), retained=True) as watch:
            keys = []
            async for item in watch:
                keys.append(item.key)
                if len(keys) == watch.retained_count == 3:
                    await client.cache_put(*S, cache, "k3", b"v")
                if len(keys) == 4:
                    return keys

    assert sorted(asyncio.run(run())) == ["k0", "k1", "k2", "k3"]
