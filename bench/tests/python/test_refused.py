"""Calls that are not built yet: each is refused, and the client stays as good as it was. The client refuses them by itself, because
the broker does not announce them (client-protocol 4.3)."""

import felix
import pytest

from conftest import connect
from processes import NAMESPACE, TENANT

S = (TENANT, NAMESPACE)
RIGHTS = [
    f"{action}:{kind}:{TENANT}/*/*"
    for kind, actions in {
        "stream": ["stream.publish", "stream.subscribe", "stream.manage"],
        "cache": ["cache.read", "cache.write"],
    }.items()
    for action in actions
]


@pytest.fixture(scope="module")
def full_token(broker):
    return broker.plane.mint(RIGHTS, ttl=3600)


CALLS = {
    "watch_cache": lambda c, s: c.watch_cache(*S, "c", felix.CacheWatchFilter.key("k")),
    "watch_cache of a prefix": lambda c, s: c.watch_cache(*S, "c", felix.CacheWatchFilter.prefix(""), retained=True),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_call_that_is_not_built_is_refused_and_the_client_goes_on(face, broker, full_token, stream, name):
    client = connect(face, broker, full_token)
    subscription = client.subscribe(*S, stream)
    client.publish(*S, stream, b"before")
    for _ in range(2):
        with pytest.raises(felix.FelixError) as caught:
            CALLS[name](client, stream)
        assert not isinstance(caught.value, (felix.AuthError, felix.OutcomeUnknownError)), caught.value
    client.publish(*S, stream, b"after")
    assert [subscription.next_event(10).payload for _ in range(2)] == [b"before", b"after"]
