"""Tokens that must not work, each with its exception and code; and one that does, so that those fail for cause."""

import time

import felix
import pytest

import tokens
from conftest import ALL_RIGHTS, Scoped, connect
from processes import OTHER_TENANT, TENANT
from waiting import until


class Forge:
    """Everything a wrong token can be made from."""

    def __init__(self, broker, key):
        self.broker, self.key = broker, key
        self.right = broker.plane.mint(ALL_RIGHTS)
        self.tenant_kid = tokens.kid_of(self.right)

    def good(self, **changes):
        return self.key.sign(tokens.claims(ALL_RIGHTS, **changes))


@pytest.fixture(scope="module")
def forge(make_broker):
    key = tokens.SigningKey("key-of-the-test")
    relays = []

    def behind_relay(plane):
        relays.append(tokens.KeyAddingPlane(plane.url, key))
        return relays[0].url

    broker = make_broker(relay=behind_relay)
    broker.create_stream("s")
    yield Forge(broker, key)
    relays[0].stop()


def past(seconds):
    return int(time.time()) - seconds


WRONG = {
    "empty": lambda f: "",
    "garbage": lambda f: "garbage",
    "three parts of garbage": lambda f: "a.b.c",
    "not ascii": lambda f: "tökèn",
    "a very long one": lambda f: "x" * 60_000,
    "alg none": lambda f: tokens.unsigned(tokens.claims(ALL_RIGHTS)),
    "signed with the public key as a secret": lambda f: tokens.symmetric(
        tokens.claims(ALL_RIGHTS), f.key.public, f.key.kid
    ),
    "signed with another key": lambda f: tokens.SigningKey("other").sign(tokens.claims(ALL_RIGHTS), kid=f.key.kid),
    "another key's signature under the tenant's key id": lambda f: tokens.SigningKey("other").sign(
        tokens.claims(ALL_RIGHTS), kid=f.tenant_kid
    ),
    "an unknown key id": lambda f: f.key.sign(tokens.claims(ALL_RIGHTS), kid="nobody-has-it"),
    "a changed payload": lambda f: swap_payload(f.right, f.good()),
    "expired": lambda f: f.good(exp=past(30), iat=past(600)),
    "without an expiry": lambda f: f.good(exp=None),
    "not yet valid": lambda f: f.good(nbf=past(-60)),
    "another audience": lambda f: f.good(aud="felix-controlplane"),
    "the control plane's own audience from the control plane": lambda f: f.broker.plane.mint(
        ALL_RIGHTS, audience="felix-controlplane"
    ),
    "another issuer": lambda f: f.good(iss="somebody-else"),
    "another tenant's claim": lambda f: f.good(tid=OTHER_TENANT),
    "another tenant's token": lambda f: f.broker.plane.mint(
        [f"stream.publish:stream:{OTHER_TENANT}/*/*"], tenant=OTHER_TENANT
    ),
    "an unknown right": lambda f: f.key.sign(tokens.claims(["stream.teleport:stream:t1/*/*"])),
}


def swap_payload(first, second):
    head, _, signature = first.split(".")
    return ".".join([head, second.split(".")[1], signature])


def test_a_token_signed_by_the_test_works_when_nothing_is_wrong_with_it(face, forge):
    client = Scoped(connect(face, forge.broker, forge.good(nbf=past(1))))
    subscription = client.subscribe("s")
    client.publish("s", b"x")
    assert subscription.next_event(10).payload == b"x"


@pytest.mark.parametrize("wrong", WRONG.values(), ids=WRONG.keys())
def test_a_wrong_token_is_an_auth_error_and_always_the_same_one(face, forge, wrong):
    with pytest.raises(felix.AuthError) as caught:
        connect(face, forge.broker, wrong(forge))
    assert (caught.value.code, caught.value.retry) == ("unauthenticated", "fatal")
    assert "authentication failed" in str(caught.value)


def test_a_tenant_that_does_not_exist_is_the_same_auth_error(face, forge):
    with pytest.raises(felix.AuthError) as caught:
        face.connect(forge.broker.addr, tenant_id="nobody", token=forge.right, ca_file=forge.broker.ca_file)
    assert caught.value.code == "unauthenticated"
    assert "authentication failed" in str(caught.value)


def test_a_wrong_second_identity_does_not_hurt_the_first(face, forge):
    first = connect(face, forge.broker, forge.right)
    subscription = Scoped(first).subscribe("s")
    with pytest.raises(felix.AuthError):
        second = first.with_identity(TENANT, "garbage")
        Scoped(second).publish("s", b"x")
    Scoped(first).publish("s", b"still here")
    assert subscription.next_event(10).payload == b"still here"


MISSING = {
    "no rights": [],
    "the other action": ["stream.publish:stream:t1/default/elsewhere", "stream.subscribe:stream:t1/default/elsewhere"],
    "another namespace": ["stream.publish:stream:t1/other/*", "stream.subscribe:stream:t1/other/*"],
}


@pytest.mark.parametrize("rights", MISSING.values(), ids=MISSING.keys())
def test_a_missing_right_is_forbidden_and_the_client_goes_on(face, forge, rights):
    client = Scoped(connect(face, forge.broker, forge.broker.plane.mint(rights)))
    for call in (
        lambda: client.publish("s", b"x"),
        lambda: client.publish("s", b"x", key=b"k"),
        lambda: client.publish("s", b"x", ack="per_batch"),
        lambda: client.subscribe("s"),
    ):
        with pytest.raises(felix.AuthError) as caught:
            call()
        assert (caught.value.code, caught.value.retry) == ("forbidden", "fatal")


def test_a_missing_right_is_forbidden_even_for_a_stream_that_does_not_exist(face, forge):
    client = Scoped(
        connect(face, forge.broker, forge.broker.plane.mint(["stream.publish:stream:t1/default/elsewhere"]))
    )
    with pytest.raises(felix.AuthError) as caught:
        client.publish("no-such-stream", b"x")
    assert caught.value.code == "forbidden"


def test_an_unacknowledged_publish_without_the_right_arrives_nowhere(face, forge):
    reader = Scoped(connect(face, forge.broker, forge.right))
    subscription = reader.subscribe("s")
    writer = Scoped(connect(face, forge.broker, forge.broker.plane.mint([])))
    dropped = forge.broker.metric("publish_dropped_total")
    writer.publish("s", b"forbidden", ack="none")
    until("the drop is counted", lambda: forge.broker.metric("publish_dropped_total") > dropped)
    reader.publish("s", b"allowed")
    assert subscription.next_event(10).payload == b"allowed"


# What the broker allows clocks to differ, and how long a connection without a valid identity may settle.
GRACE_S, SETTLE_S = 5, 2


def soon_over(forge):
    """A token that is accepted for about two more seconds, and the time from which nothing may be served with it."""
    expiry = past(3)
    return forge.good(exp=expiry), expiry + GRACE_S + SETTLE_S + 1


def test_a_fixed_token_that_runs_out_publishes_nothing_after_its_grace(face, forge):
    token, over = soon_over(forge)
    client = Scoped(connect(face, forge.broker, token))
    client.publish("s", b"in time")
    with pytest.raises((felix.AuthError, felix.ConnectionError)):
        while time.time() < over:
            client.publish("s", b"x")
    with pytest.raises(felix.AuthError):
        connect(face, forge.broker, token)


def test_a_subscription_under_a_fixed_token_that_runs_out_gets_nothing_after_its_grace(face, forge):
    token, over = soon_over(forge)
    writer = Scoped(connect(face, forge.broker, forge.right))
    reader = Scoped(connect(face, forge.broker, token))
    subscription = reader.subscribe("s")
    got = []

    def serves():
        writer.publish("s", b"%f" % time.time())
        try:
            event = subscription.next_event(0.05)
        except felix.AuthError:
            return "refused"
        if event is not None:
            got.append(float(event.payload))
        return None

    until("the subscription is refused", serves, within=over - time.time() + 5)
    assert got and max(got) < over


def test_a_refused_token_makes_the_client_ask_its_provider_once_more(face, forge):
    answers = ["garbage", forge.right]
    calls = []

    def provider():
        calls.append(1)
        return answers[min(len(calls), len(answers)) - 1]

    options = {"tenant_id": TENANT, "token_provider": provider, "ca_file": forge.broker.ca_file}
    client = Scoped(face.connect(forge.broker.addr, **options))
    client.publish("s", b"x")
    assert len(calls) == 2
