"""Caches and counters, with logs and in memory: what calls answer, bad calls, many clients at once, the broker's death."""

import itertools
import threading
import time

import felix
import pytest

from conftest import connect
from faces import SyncFace
from processes import NAMESPACE, TENANT
from waiting import Job, until

S = (TENANT, NAMESPACE)
RIGHTS = [f"cache.read:cache:{TENANT}/*/*", f"cache.write:cache:{TENANT}/*/*"]
KILLS = 5


@pytest.fixture(scope="module", params=["with logs", "in memory"])
def cache_broker(request, make_broker):
    return make_broker(cores=3, stored=request.param == "with logs")


@pytest.fixture(scope="module")
def cache_token(cache_broker):
    return cache_broker.plane.mint(RIGHTS, ttl=3600)


@pytest.fixture
def cache_client(face, cache_broker, cache_token):
    return connect(face, cache_broker, cache_token)


_NUMBERS = itertools.count()


@pytest.fixture
def cache(cache_broker):
    return cache_broker.create_cache(f"c{next(_NUMBERS)}", shards=2)


def refused(call):
    with pytest.raises(felix.FelixError) as caught:
        call()
    return caught.value


def test_a_value_is_read_until_it_is_replaced_or_deleted(cache_client, cache):
    client = cache_client
    assert client.cache_get(*S, cache, "k") is None
    assert client.cache_delete(*S, cache, "k") is None
    for value in [b"one", b"", bytes(range(256)) * 300, b"x" * (5 << 20)]:
        client.cache_put(*S, cache, "k", value)
        assert client.cache_get(*S, cache, "k") == value
    assert client.cache_delete(*S, cache, "k") == b"x" * (5 << 20)
    assert client.cache_get(*S, cache, "k") is None


def test_keys_are_any_text(cache_client, cache):
    keys = ["", " ", "a/b:c*", "\0", "\n\t\"\\", "\u00e4\U0001f600", "k" * 65_535]
    for number, key in enumerate(keys):
        cache_client.cache_put(*S, cache, key, b"%d" % number)
    for number, key in enumerate(keys):
        assert cache_client.cache_get(*S, cache, key) == b"%d" % number
    error = refused(lambda: cache_client.cache_put(*S, cache, "k" * 65_536, b"v"))
    assert error.code == "invalid_request" and "65535" in str(error).replace(",", ""), error
    assert cache_client.cache_get(*S, cache, "") == b"0"


def test_a_value_lives_as_long_as_it_was_given(cache_client, cache):
    client = cache_client
    client.cache_put(*S, cache, "over", b"v", ttl=0.0)
    assert client.cache_get(*S, cache, "over") is None
    client.cache_put(*S, cache, "short", b"v", ttl=0.6)
    client.cache_put(*S, cache, "cleared", b"v", ttl=0.6)
    client.cache_put(*S, cache, "cleared", b"w")
    client.cache_put(*S, cache, "long", b"v", ttl=3600)
    assert client.cache_get(*S, cache, "short") == b"v"
    until("it has expired", lambda: client.cache_get(*S, cache, "short") is None)
    assert client.cache_delete(*S, cache, "short") is None
    assert client.cache_get(*S, cache, "cleared") == b"w"
    assert client.cache_get(*S, cache, "long") == b"v"


def test_a_counter_tells_its_sum_and_zero_from_never_written(cache_client, cache):
    client = cache_client
    assert client.counter_get(*S, cache, "n") is None
    assert client.counter_add(*S, cache, "n", 5) == 5
    assert client.counter_add(*S, cache, "n", -5) == 0
    assert client.counter_get(*S, cache, "n") == 0
    assert client.cache_get(*S, cache, "n") is None, "a counter is no value"
    assert client.counter_add(*S, cache, "n", (1 << 63) - 1) == (1 << 63) - 1
    error = refused(lambda: client.counter_add(*S, cache, "n", 1))
    assert (error.code, error.retry) == ("invalid_request", "fatal")
    assert client.counter_get(*S, cache, "n") == (1 << 63) - 1
    assert client.counter_add(*S, cache, "m", -(1 << 63)) == -(1 << 63)


def test_caches_and_streams_of_one_name_are_unrelated(cache_client, cache_broker, cache):
    cache_broker.create_stream(cache, shards=1)
    other = cache_broker.create_cache(f"{cache}-other")
    cache_client.cache_put(*S, cache, "k", b"here")
    assert cache_client.cache_get(*S, other, "k") is None


def test_what_is_not_there_or_not_allowed_is_told_and_the_client_goes_on(face, cache_broker, cache_client, cache):
    with pytest.raises(felix.NotFoundError):
        cache_client.cache_get(*S, "nowhere", "k")
    with pytest.raises(felix.NotFoundError):
        cache_client.counter_add(*S, "nowhere", "k", 1)
    cache_client.cache_put(*S, cache, "mine/1", b"v")
    rights = [f"cache.read:cache:{TENANT}/{NAMESPACE}/{cache}/mine/*"]
    narrow = connect(face, cache_broker, cache_broker.plane.mint(rights, ttl=3600))
    for _ in range(2):
        for call in [
            lambda: narrow.cache_put(*S, cache, "mine/1", b"w"),
            lambda: narrow.cache_get(*S, cache, "yours/1"),
            lambda: narrow.counter_add(*S, cache, "mine/1", 1),
            lambda: narrow.cache_get("t2", NAMESPACE, cache, "mine/1"),
        ]:
            with pytest.raises(felix.AuthError):
                call()
    assert narrow.cache_get(*S, cache, "mine/1") == b"v"
    error = refused(lambda: cache_client.cache_put(*S, cache, "k", b"x" * (11 << 20) + b"x"))
    assert error.code in ("limit_exceeded", "invalid_request"), error
    assert cache_client.cache_get(*S, cache, "mine/1") == b"v"


def test_many_clients_on_all_cores_count_together_and_read_what_others_wrote(face, cache_broker, cache_token):
    cache = cache_broker.create_cache(f"wide{next(_NUMBERS)}", shards=7)
    clients = [connect(face, cache_broker, cache_token) for _ in range(4)]

    def work(number, client):
        for round_ in range(60):
            client.counter_add(*S, cache, f"n{round_ % 5}", number + 1)
            client.cache_put(*S, cache, f"k{number}-{round_}", b"%d" % round_)

    for job in [Job(lambda n=n, c=c: work(n, c)) for n, c in enumerate(clients)]:
        job.result(60)
    for number, round_ in itertools.product(range(4), range(60)):
        reader = clients[(number + round_) % 4]
        assert reader.cache_get(*S, cache, f"k{number}-{round_}") == b"%d" % round_
    sums = [clients[0].counter_get(*S, cache, f"n{at}") for at in range(5)]
    assert sums == [12 * (1 + 2 + 3 + 4)] * 5


def test_a_cache_that_is_made_again_is_empty(cache_client, cache_broker):
    name = cache_broker.create_cache(f"again{next(_NUMBERS)}")
    cache_client.cache_put(*S, name, "k", b"v")
    cache_client.counter_add(*S, name, "k", 1)
    cache_broker.delete_cache(name)
    until("it is gone", lambda: _is_gone(cache_client, name))
    cache_broker.create_cache(name)
    assert cache_client.cache_get(*S, name, "k") is None
    assert cache_client.counter_get(*S, name, "k") is None


def _is_gone(client, name):
    try:
        client.cache_get(*S, name, "k")
    except felix.NotFoundError:
        return True
    return False


class Writer:
    """Counts and writes numbers of its own until it is told to end, and remembers what was answered."""

    def __init__(self, client, cache, name):
        self.added, self.unknown, self.values, self.maybe = 0, 0, {}, {}
        self._client, self._cache, self._name = client, cache, name
        self._ends = threading.Event()
        self._job = Job(self._write)

    def _write(self):
        for number in itertools.count():
            if self._ends.is_set():
                return
            key, value = f"{self._name}-{number % 50}", b"%d" % number
            try:
                self._client.counter_add(*S, self._cache, self._name, 1)
                self.added += 1
            except felix.FelixError as error:
                self.unknown += not _refused_unwritten(error)
                time.sleep(0.01)
            try:
                self._client.cache_put(*S, self._cache, key, value)
                self.values[key] = value
                self.maybe.pop(key, None)
            except felix.FelixError as error:
                if not _refused_unwritten(error):
                    self.maybe.setdefault(key, set()).add(value)
                time.sleep(0.01)

    def end(self):
        self._ends.set()
        self._job.result(60)


def _refused_unwritten(error):
    return error.code is not None and not isinstance(error, felix.OutcomeUnknownError)


def test_what_was_answered_survives_kills(make_broker, face):
    broker = make_broker(cores=2, settings={"fsync": "on_commit", "segment_bytes": "1MiB", "commit_slot_bytes": "1MiB", "disk_low": "64MiB"})
    token = broker.plane.mint(RIGHTS, ttl=3600)
    cache = broker.create_cache("killed", shards=3)
    writers = [Writer(connect(kind, broker, token), cache, f"w{at}") for at, kind in enumerate([SyncFace, face])]
    for _ in range(KILLS):
        so_far = [writer.added for writer in writers]
        until("more is answered", lambda: all(w.added > s + 20 for w, s in zip(writers, so_far)), within=40)
        broker.kill()
        broker.start()
    for writer in writers:
        writer.end()
    broker.kill()
    broker.start()
    broker.serves_caches()
    client = connect(face, broker, token)
    for at, writer in enumerate(writers):
        count = client.counter_get(*S, cache, f"w{at}")
        assert writer.added <= count <= writer.added + writer.unknown
        for key, value in writer.values.items():
            got = client.cache_get(*S, cache, key)
            assert got == value or got in writer.maybe.get(key, ()), (key, got, value)
