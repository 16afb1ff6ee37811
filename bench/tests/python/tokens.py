"""Tokens that a control plane does not hand out: wrong ones, and ones with claims of a test's choice.

Owns: a key of the test's own, and `KeyAddingPlane`, a relay in front of the control plane that adds that key to a
tenant's key set, so that a broker behind it accepts what is signed here.
"""

import base64
import json
import threading
import time
import urllib.error
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import jwt
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from processes import TENANT

ISSUER = "felix-auth"


class SigningKey:
    """An Ed25519 key pair with a key id."""

    def __init__(self, kid):
        self.kid = kid
        self._private = Ed25519PrivateKey.generate()
        raw = serialization.Encoding.Raw
        self.public = self._private.public_key().public_bytes(raw, serialization.PublicFormat.Raw)

    def jwk(self):
        return {
            "kty": "OKP",
            "crv": "Ed25519",
            "alg": "EdDSA",
            "use": "sig",
            "kid": self.kid,
            "x": base64.urlsafe_b64encode(self.public).rstrip(b"=").decode(),
        }

    def sign(self, claims, kid=None):
        return jwt.encode(claims, self._private, algorithm="EdDSA", headers={"kid": kid or self.kid})


def claims(permissions, **changes):
    """The claims of a good token, with `changes`; a change to None leaves the claim out."""
    now = int(time.time())
    made = {
        "iss": ISSUER,
        "aud": "felix-broker",
        "sub": "someone",
        "tid": TENANT,
        "iat": now,
        "exp": now + 600,
        "perms": permissions,
    }
    made.update(changes)
    return {name: value for name, value in made.items() if value is not None}


def unsigned(body):
    """A token that says it needs no signature."""
    parts = [{"alg": "none", "typ": "JWT"}, body]
    return ".".join(base64.urlsafe_b64encode(json.dumps(part).encode()).rstrip(b"=").decode() for part in parts) + "."


def symmetric(body, secret, kid):
    """A token signed with a secret that everybody knows: the public key's bytes."""
    return jwt.encode(body, secret, algorithm="HS256", headers={"kid": kid})


def kid_of(token):
    return jwt.get_unverified_header(token)["kid"]


class KeyAddingPlane:
    """Relays everything to the control plane at `target`, and adds `key` to every key set on the way back."""

    def __init__(self, target, key):
        relay = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def _relay(self):
                length = int(self.headers.get("content-length") or 0)
                status, kind, body = relay._ask(self.command, self.path, self.headers, self.rfile.read(length))
                self.send_response(status)
                self.send_header("content-type", kind)
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            do_GET = do_POST = _relay

            def log_message(self, *_):
                pass

        self._target, self._key = target, key
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def _ask(self, method, path, headers, body):
        passed = {name: headers[name] for name in ("authorization", "content-type", "accept") if name in headers}
        request = urllib.request.Request(self._target + path, method=method, data=body or None, headers=passed)
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                status, kind, text = answer.status, answer.headers["content-type"], answer.read()
        except urllib.error.HTTPError as refusal:
            status, kind, text = refusal.code, refusal.headers["content-type"], refusal.read()
        if path.endswith("/jwks.json") and status == 200:
            keys = json.loads(text)
            keys["keys"].append(self._key.jwk())
            text = json.dumps(keys).encode()
        return status, kind or "application/json", text

    def stop(self):
        self._server.shutdown()
        self._server.server_close()
