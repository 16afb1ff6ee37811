use serde_json::json;

use super::*;

const NOW: u64 = 1_000_000;

fn claims() -> Claims {
    Claims {
        iss: TOKEN_ISSUER.into(),
        aud: Audience::ControlPlane.as_str().into(),
        sub: "p".into(),
        tid: "t".into(),
        iat: NOW,
        exp: NOW + 60,
        nbf: None,
        perms: vec!["stream.manage:stream:t/n/*".into()],
        jti: None,
        act: None,
        may_act: None,
    }
}

fn verdict(keys: &SigningKeys, token: &str, now: u64) -> Result<Claims, TokenError> {
    keys.verify(token, "t", Audience::ControlPlane, now).map(|(claims, _)| claims)
}

/// A token with any header and payload, signed with the keys.
fn forged(keys: &SigningKeys, header: serde_json::Value, payload: serde_json::Value) -> String {
    let part = |value: serde_json::Value| URL_SAFE_NO_PAD.encode(value.to_string());
    let message = format!("{}.{}", part(header), part(payload));
    let pair = Ed25519KeyPair::from_pkcs8(&STANDARD.decode(&keys.current.private).unwrap()).unwrap();
    format!("{message}.{}", URL_SAFE_NO_PAD.encode(pair.sign(message.as_bytes())))
}

#[test]
fn a_signed_token_verifies_and_carries_its_grants() {
    let keys = SigningKeys::generate().unwrap();
    let token = keys.sign(&claims()).unwrap();
    let (read, grants) = keys.verify(&token, "t", Audience::ControlPlane, NOW).unwrap();
    assert_eq!(read, claims());
    assert!(grants.allows_stream(felix_wire::control::Action::StreamManage, "t", "n", "s"));
    assert_eq!(unverified_tenant(&token), Ok("t".into()));
}

#[test]
fn times_are_checked_with_five_seconds_of_leeway() {
    let keys = SigningKeys::generate().unwrap();
    let token = keys.sign(&Claims { nbf: Some(NOW), ..claims() }).unwrap();
    for (now, expected) in [
        (NOW - 6, Err(TokenError::NotYetValid)),
        (NOW - 5, Ok(())),
        (NOW + 60, Ok(())),
        (NOW + 64, Ok(())),
        (NOW + 65, Err(TokenError::Expired)),
    ] {
        assert_eq!(verdict(&keys, &token, now).map(|_| ()), expected, "at {now}");
    }
}

#[test]
fn claims_that_do_not_fit_are_refused() {
    let keys = SigningKeys::generate().unwrap();
    let table = [
        (Claims { iss: "other".into(), ..claims() }, TokenError::Issuer),
        (Claims { aud: "felix-broker".into(), ..claims() }, TokenError::Audience),
        (Claims { aud: String::new(), ..claims() }, TokenError::Audience),
        (Claims { tid: "u".into(), ..claims() }, TokenError::Tenant),
        (Claims { perms: vec!["stream.fly:stream:t/n/s".into()], ..claims() }, TokenError::Permission),
        (Claims { perms: vec!["stream.manage:stream:u/n/s".into()], ..claims() }, TokenError::Permission),
    ];
    for (bad, expected) in table {
        assert_eq!(verdict(&keys, &keys.sign(&bad).unwrap(), NOW), Err(expected));
    }
}

#[test]
fn headers_and_payloads_outside_the_rules_are_refused() {
    let keys = SigningKeys::generate().unwrap();
    let kid = keys.current.kid.clone();
    let good = serde_json::to_value(claims()).unwrap();
    let header = json!({"alg": "EdDSA", "kid": kid});
    assert!(verdict(&keys, &forged(&keys, header.clone(), good.clone()), NOW).is_ok());
    let without = |member: &str| {
        let mut payload = good.clone();
        payload.as_object_mut().unwrap().remove(member);
        payload
    };
    let with = |member: &str, value: serde_json::Value| {
        let mut payload = good.clone();
        payload[member] = value;
        payload
    };
    let table = [
        (json!({"alg": "none", "kid": kid}), good.clone(), TokenError::Malformed),
        (json!({"alg": "HS256", "kid": kid}), good.clone(), TokenError::Algorithm),
        (json!({"alg": "RS256", "kid": kid}), good.clone(), TokenError::Algorithm),
        (json!({"alg": "EdDSA"}), good.clone(), TokenError::UnknownKey),
        (json!({"alg": "EdDSA", "kid": "other"}), good.clone(), TokenError::UnknownKey),
        (header.clone(), without("exp"), TokenError::Malformed),
        (header.clone(), without("aud"), TokenError::Malformed),
        (header.clone(), without("tid"), TokenError::Malformed),
        (header.clone(), with("aud", json!(["felix-controlplane", "felix-broker"])), TokenError::Malformed),
        (header.clone(), with("exp", json!("never")), TokenError::Malformed),
        (header.clone(), with("exp", json!(-1)), TokenError::Malformed),
    ];
    for (header, payload, expected) in table {
        let token = forged(&keys, header.clone(), payload.clone());
        assert_eq!(verdict(&keys, &token, NOW), Err(expected), "{header} {payload}");
    }
}

#[test]
fn a_token_of_another_key_or_with_changed_bytes_is_refused() {
    let (keys, others) = (SigningKeys::generate().unwrap(), SigningKeys::generate().unwrap());
    let token = others.sign(&claims()).unwrap();
    assert_eq!(verdict(&keys, &token, NOW), Err(TokenError::UnknownKey));
    let header = json!({"alg": "EdDSA", "kid": keys.current.kid});
    let imposed = forged(&others, header, serde_json::to_value(claims()).unwrap());
    assert_eq!(verdict(&keys, &imposed, NOW), Err(TokenError::Signature));
    let token = keys.sign(&claims()).unwrap();
    for at in 0..token.len() {
        let mut bytes = token.clone().into_bytes();
        bytes[at] = if bytes[at] == b'A' { b'B' } else { b'A' };
        let changed = String::from_utf8(bytes).unwrap();
        // The last character of a part may carry bits that decode to nothing.
        let last_of_part = token[at + 1..].starts_with('.') || at + 1 == token.len();
        assert!(verdict(&keys, &changed, NOW).is_err() || last_of_part, "byte {at}");
    }
}

#[test]
fn garbage_is_malformed() {
    let keys = SigningKeys::generate().unwrap();
    let long = format!("{}.e30.", "A".repeat(TOKEN_BYTES_MAX));
    for garbage in ["", ".", "..", "a.b", "a.b.c", "e30.e30.e30", "\u{1f600}.x.y", &long] {
        assert_eq!(verdict(&keys, garbage, NOW), Err(TokenError::Malformed), "{garbage:.20}");
        assert!(unverified_tenant(garbage).is_err(), "{garbage:.20}");
    }
}

#[test]
fn the_key_set_publishes_public_halves_only_and_verify_only_keys_verify() {
    let (keys, old) = (SigningKeys::generate().unwrap(), SigningKeys::generate().unwrap());
    let retired = VerifyKey { kid: old.current.kid.clone(), public: old.current.public.clone() };
    let rotated = SigningKeys { verify_only: vec![retired], ..keys.clone() };
    let token = old.sign(&claims()).unwrap();
    assert!(verdict(&rotated, &token, NOW).is_ok());
    let published = serde_json::to_string(&rotated.jwks()).unwrap();
    assert_eq!(rotated.jwks().keys.len(), 2);
    assert!(published.contains(&old.current.kid) && published.contains(r#""crv":"Ed25519""#));
    assert!(!published.contains(&keys.current.private));
    assert!(!format!("{rotated:?}").contains(&keys.current.private));
}
