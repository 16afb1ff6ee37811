"""A program that subscribes and says what it gets, one line each on standard output; for tests that stop or kill it.

Arguments: address, tenant, token, CA file, namespace, stream.
Lines: `ready` once subscribed, plainly and to all shards; then the payloads of the plain subscription.
"""

import sys

import felix


def main(addr, tenant, token, ca_file, namespace, stream):
    client = felix.Client(addr, tenant_id=tenant, token=token, ca_file=ca_file)
    plain = client.subscribe(tenant, namespace, stream)
    sharded = client.subscribe_sharded(tenant, namespace, stream)
    print("ready", flush=True)
    while True:
        event = plain.next_event(0.2)
        if event is not None:
            print(event.payload[:32].decode(), flush=True)
        while sharded.next_event(0) is not None:
            pass


if __name__ == "__main__":
    main(*sys.argv[1:])
