//! Tokens signed with real keys.

use aws_lc_rs::signature::{Ed25519KeyPair, KeyPair};
use jsonwebtoken::{EncodingKey, Header};
use serde_json::{Value, json};

use super::*;
use crate::snapshot::TenantKeys;

const NOW: u64 = 1_800_000_000;
const CLOCK: TokenClock = TokenClock { now_s: NOW, leeway_s: 5 };

struct Signer {
    key: EncodingKey,
    verify: DecodingKey,
}

impl Signer {
    fn new() -> Signer {
        let document = Ed25519KeyPair::generate_pkcs8(&aws_lc_rs::rand::SystemRandom::new()).unwrap();
        let pair = Ed25519KeyPair::from_pkcs8(document.as_ref()).unwrap();
        Signer {
            key: EncodingKey::from_ed_der(document.as_ref()),
            verify: DecodingKey::from_ed_der(pair.public_key().as_ref()),
        }
    }

    fn sign(&self, kid: Option<&str>, claims: &Value) -> String {
        let mut header = Header::new(Algorithm::EdDSA);
        header.kid = kid.map(str::to_owned);
        jsonwebtoken::encode(&header, claims, &self.key).unwrap()
    }
}

fn claims() -> Value {
    json!({
        "iss": "felix-auth", "aud": "felix-broker", "sub": "p", "tid": "t1", "iat": NOW - 10, "exp": NOW + 60,
        "perms": ["stream.publish:stream:t1/ns/*", "stream.subscribe:stream:t1/ns/s"],
    })
}

fn with(name: &str, value: Value) -> Value {
    let mut claims = claims();
    claims[name] = value;
    claims
}

fn without(name: &str) -> Value {
    let mut claims = claims();
    claims.as_object_mut().unwrap().remove(name);
    claims
}

fn keys(signer: &Signer) -> Keys {
    let mut keys = Keys::default();
    keys.tenants.insert(
        "t1".into(),
        TenantKeys { keys: vec![("k1".into(), signer.verify.clone())], fetched_at: None },
    );
    keys
}

fn verify(signer: &Signer, token: &str) -> Result<Arc<Principal>, &'static str> {
    match Access::default().verify("t1", token, CLOCK, &keys(signer), true) {
        Verdict::Accepted(principal) => Ok(principal),
        Verdict::Refused { why } => Err(why),
        Verdict::NeedKeys { .. } => Err("needs keys"),
    }
}

#[test]
fn a_good_token_is_a_principal_with_exactly_its_rights() {
    let signer = Signer::new();
    let principal = verify(&signer, &signer.sign(Some("k1"), &claims())).unwrap();
    assert_eq!((&*principal.tenant, &*principal.subject, principal.expires_s), ("t1", "p", NOW + 60));
    let may = |action, name| principal.stream(action, name, ()).is_ok();
    assert!(may(Action::StreamPublish, ("t1", "ns", "any")));
    assert!(may(Action::StreamSubscribe, ("t1", "ns", "s")));
    assert!(!may(Action::StreamSubscribe, ("t1", "ns", "other")), "the right is missing");
    assert!(!may(Action::StreamPublish, ("t1", "other", "any")));
    assert!(!may(Action::StreamPublish, ("t2", "ns", "any")), "another tenant");
    assert!(principal.sees_stream(("t1", "ns", "other"), ()).is_ok(), "publishing is enough to see it");
    assert!(principal.sees_stream(("t2", "ns", "other"), ()).is_err());
}

#[test]
fn every_bad_token_is_refused() {
    let signer = Signer::new();
    let other = Signer::new();
    let good = signer.sign(Some("k1"), &claims());
    let parts: Vec<&str> = good.split('.').collect();
    let none = "eyJhbGciOiJub25lIiwia2lkIjoiazEifQ";
    let hs = "eyJhbGciOiJIUzI1NiIsImtpZCI6ImsxIn0";
    let signed = |claims: &Value| signer.sign(Some("k1"), claims);
    let bad = [
        ("none", String::new()),
        ("garbage", "garbage".to_owned()),
        ("garbage in three parts", "a.b.c".to_owned()),
        ("alg none", format!("{none}.{}.", parts[1])),
        ("alg none with a signature", format!("{none}.{}.{}", parts[1], parts[2])),
        ("alg HS256", format!("{hs}.{}.{}", parts[1], parts[2])),
        ("no signature", format!("{}.{}.", parts[0], parts[1])),
        ("other key", other.sign(Some("k1"), &claims())),
        ("unknown key id", signer.sign(Some("k2"), &claims())),
        ("no key id", signer.sign(None, &claims())),
        ("expired", signed(&with("exp", json!(NOW - 5)))),
        ("no expiry", signed(&without("exp"))),
        ("not yet valid", signed(&with("nbf", json!(NOW + 6)))),
        ("audience of the control plane", signed(&with("aud", json!("felix-controlplane")))),
        ("two audiences", signed(&with("aud", json!(["felix-broker", "x"])))),
        ("no audience", signed(&without("aud"))),
        ("other issuer", signed(&with("iss", json!("somebody")))),
        ("no issuer", signed(&without("iss"))),
        ("tenant of another", signed(&with("tid", json!("t2")))),
        ("unknown action", signed(&with("perms", json!(["stream.fly:stream:t1/ns/*"])))),
        ("object of another tenant", signed(&with("perms", json!(["stream.publish:stream:t2/ns/*"])))),
        ("too long", format!("{good}{}", "A".repeat(TOKEN_BYTES_MAX))),
    ];
    for (what, token) in &bad {
        assert!(verify(&signer, token).is_err(), "{what} was accepted");
    }
    assert!(verify(&signer, &good).is_ok());
}

#[test]
fn five_seconds_of_leeway_and_not_one_more() {
    let signer = Signer::new();
    let verdict = |name, at| verify(&signer, &signer.sign(Some("k1"), &with(name, json!(at)))).is_ok();
    assert!(verdict("exp", NOW - 4) && !verdict("exp", NOW - 5));
    assert!(verdict("nbf", NOW + 5) && !verdict("nbf", NOW + 6));
    assert!(verdict("exp", u64::MAX), "no overflow");
}

#[test]
fn a_remembered_token_ends_with_its_expiry_too() {
    let signer = Signer::new();
    let mut access = Access::default();
    let token = signer.sign(Some("k1"), &claims());
    let at = |access: &mut Access, now_s, keys: &Keys| {
        matches!(access.verify("t1", &token, TokenClock { now_s, ..CLOCK }, keys, true), Verdict::Accepted(_))
    };
    assert!(at(&mut access, NOW, &keys(&signer)));
    assert!(at(&mut access, NOW + 64, &Keys::default()), "from memory");
    assert!(!at(&mut access, NOW + 65, &keys(&signer)));
    assert!(!at(&mut access, NOW + 65, &keys(&signer)), "and again");
}

#[test]
fn a_token_is_remembered_for_its_tenant_only_and_forgotten_with_the_keys() {
    let signer = Signer::new();
    let mut access = Access::default();
    let token = signer.sign(Some("k1"), &claims());
    let known = keys(&signer);
    let accepted = |verdict| matches!(verdict, Verdict::Accepted(_));
    assert!(accepted(access.verify("t1", &token, CLOCK, &known, true)));
    assert!(!accepted(access.verify("t2", &token, CLOCK, &known, true)));
    access.forget_all();
    assert!(!accepted(access.verify("t1", &token, CLOCK, &Keys::default(), true)));
}

#[test]
fn an_unknown_key_is_asked_for_once() {
    let signer = Signer::new();
    let token = signer.sign(Some("k9"), &claims());
    let mut access = Access::default();
    match access.verify("t1", &token, CLOCK, &keys(&signer), false) {
        Verdict::NeedKeys { kid } => assert_eq!(&*kid, "k9"),
        other => panic!("{other:?}"),
    }
    assert!(matches!(access.verify("t1", &token, CLOCK, &keys(&signer), true), Verdict::Refused { .. }));
}
