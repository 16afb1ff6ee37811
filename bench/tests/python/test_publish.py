from conftest import *

def test_smoke(client, stream):
    sub = client.subscribe(stream)
    client.publish(stream, b"hello")
    event = sub.next_event(10)
    assert event.payload == b"hello"
