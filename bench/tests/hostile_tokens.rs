//! Tokens that are wrong, or run out, against the running broker (reliability I25; architecture 7, token expiry).

mod support;

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use felix_wire::control::Claims;
use jsonwebtoken::{Algorithm, EncodingKey, Header};
use serde_json::{Value, json};
use support::issuer::{Issuer, Signer, claims, now_s};
use support::raw::{Event, Line, Raw, application_close, auth};
use support::within;
use support::world::{NAMESPACE, TENANT};

const NAME: (&str, &str, &str) = (TENANT, NAMESPACE, "s");
/// Number of `unauthenticated` and `forbidden` in binary answers (client-protocol 8).
const UNAUTHENTICATED: u16 = 1;
const FORBIDDEN: u16 = 2;
/// Leeway of the broker, seconds.
const LEEWAY_S: u64 = 5;
/// What the broker's timers and a busy machine may add.
const LATE_MAX: Duration = Duration::from_millis(1_500);

async fn answer_to(client: &Raw, tenant: &str, token: &str) -> Value {
    let mut line = client.open().await;
    line.send(&auth(tenant, token)).await;
    let answer = line.json().await;
    if answer["type"] == "error" {
        line.ends().await;
    }
    answer
}

fn unsigned(claims: &Claims) -> String {
    let part = |value: &Value| URL_SAFE_NO_PAD.encode(serde_json::to_vec(value).unwrap());
    let header = json!({"alg": "none", "typ": "JWT", "kid": "k1"});
    format!("{}.{}.", part(&header), part(&serde_json::to_value(claims).unwrap()))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_bad_token_gets_the_same_answer() {
    let issuer = Issuer::start().await;
    let good = claims("app");
    let with = |change: fn(&mut Claims)| {
        let mut changed = claims("app");
        change(&mut changed);
        issuer.signer.sign(&changed)
    };
    let header = Header { kid: Some("k1".to_owned()), ..Header::new(Algorithm::HS256) };
    let secret = EncodingKey::from_secret(&issuer.signer.public).unwrap();
    let symmetric = jsonwebtoken::encode(&header, &good, &secret).unwrap();
    let valid = issuer.signer.sign(&good);
    let mut cut = valid.clone();
    cut.truncate(valid.len() - 4);
    let mut two_dots = valid.split('.').map(str::to_owned).collect::<Vec<_>>();
    two_dots.swap(1, 2);
    let bad = [
        ("none", String::new()),
        ("garbage", "garbage".to_owned()),
        ("dots", "a.b.c".to_owned()),
        ("alg none", unsigned(&good)),
        ("the public key as a secret", symmetric),
        ("another key under a known id", Signer::new("k1").sign(&good)),
        ("an unknown key", Signer::new("k9").sign(&good)),
        ("cut short", cut),
        ("parts swapped", two_dots.join(".")),
        ("expired", with(|c| c.exp = now_s() - 60)),
        ("not yet valid", with(|c| c.nbf = Some(now_s() + 600))),
        ("wrong audience", with(|c| c.aud = "felix-controlplane".to_owned())),
        ("wrong issuer", with(|c| c.iss = "somebody".to_owned())),
        ("of another tenant", with(|c| c.tid = "other".to_owned())),
        ("endless", "x".repeat(61 << 10)),
    ];
    let mut answers = Vec::new();
    for (what, token) in &bad {
        let client = issuer.client().await;
        let answer = answer_to(&client, TENANT, token).await;
        assert_eq!(
            (answer["type"].as_str(), answer["code"].as_str()),
            (Some("error"), Some("unauthenticated")),
            "{what}"
        );
        answers.push((*what, answer));
        // The connection is not at fault: a good token is taken.
        client.authed(TENANT, &valid).await;
    }
    let client = issuer.client().await;
    answers.push(("for a tenant nobody knows", answer_to(&client, "nobody", &valid).await));
    let first = answers[0].1.clone();
    for (what, answer) in answers {
        assert_eq!(answer, first, "{what}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unknown_key_ids_cost_one_question_in_five_seconds() {
    let issuer = Issuer::start().await;
    let before = issuer.key_fetches.load(Ordering::Relaxed);
    let began = Instant::now();
    let client = issuer.client().await;
    client.authed(TENANT, &issuer.signer.sign(&claims("app"))).await;
    let mut lines = Vec::new();
    for i in 0..60 {
        let mut line = client.open().await;
        line.send(&auth(TENANT, &Signer::new(&format!("unknown-{i}")).sign(&claims("app")))).await;
        lines.push(line);
    }
    for line in &mut lines {
        assert_eq!(line.json().await["code"], "unauthenticated");
    }
    let asked = issuer.key_fetches.load(Ordering::Relaxed) - before;
    let allowed = 1 + began.elapsed().as_secs() / 5;
    assert!(asked <= allowed, "{asked} questions in {:?}", began.elapsed());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_missing_right_is_forbidden_whether_the_stream_exists_or_not() {
    let issuer = Issuer::start().await;
    let perms = vec![format!("stream.publish:stream:{TENANT}/{NAMESPACE}/p")];
    let token = issuer.signer.sign(&Claims { perms, ..claims("narrow") });
    let client = issuer.client().await;
    let mut texts = Vec::new();
    for (tenant, stream) in [(TENANT, "s"), (TENANT, "missing"), ("other", "s")] {
        let mut line = client.authed(TENANT, &token).await;
        let ack = line.publish((tenant, NAMESPACE, stream), 1, &[b"x"]).await;
        assert_eq!(ack.code, Some(FORBIDDEN), "publish to {tenant}/{stream}");
        texts.push(ack.message);
        let name = (NAMESPACE, stream);
        let mut line = client.authed(TENANT, &token).await;
        line.send(&json!({"type": "subscribe", "tenant_id": tenant, "namespace": name.0, "stream": name.1}))
            .await;
        let answer = line.json().await;
        assert_eq!(answer["code"], "forbidden", "subscribe to {tenant}/{stream}: {answer}");
        texts.push(answer["message"].as_str().unwrap().to_owned());
        line.send(
            &json!({"type": "stream_shards", "tenant_id": tenant, "namespace": name.0, "stream": name.1,
            "request_id": 3}),
        )
        .await;
        let answer = line.json().await;
        assert_eq!(answer["code"], "forbidden", "stream_shards of {tenant}/{stream}: {answer}");
        texts.push(answer["message"].as_str().unwrap().to_owned());
    }
    texts.dedup();
    assert_eq!(texts.len(), 1, "{texts:?}");
}

/// Publishes one numbered record every few milliseconds until the broker refuses; what was acked, and the refusal.
async fn publish_until_refused(line: &mut Line) -> (u64, u16, SystemTime) {
    let mut number = 0_u64;
    loop {
        let ack = line.publish(NAME, number + 1, &[&number.to_be_bytes()]).await;
        if let Some(code) = ack.code {
            return (number, code, SystemTime::now());
        }
        number += 1;
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

fn at(seconds: u64) -> SystemTime {
    UNIX_EPOCH + Duration::from_secs(seconds)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_served_five_seconds_after_the_last_token_ran_out() {
    let issuer = Issuer::start().await;
    let exp = now_s() + 2;
    let short = issuer.signer.sign(&Claims { exp, ..claims("short") });
    let reader = issuer.client().await;
    let (_, events) = reader.subscribe((TENANT, &short), (NAMESPACE, "s"), 0, json!("latest")).await;
    let mut events = events.unwrap();
    let writer = issuer.client().await;
    let mut line = writer.authed(TENANT, &short).await;
    let other = issuer.client().await;
    let mut steady = other.authed(TENANT, &issuer.signer.sign(&claims("steady"))).await;
    let end = at(exp + LEEWAY_S);
    let reading = tokio::spawn(async move {
        let mut next = 0;
        loop {
            match within("events until the token ran out", events.next()).await {
                Event::Batch(base, records) => {
                    assert_eq!(base, next);
                    next += records.len() as u64;
                }
                Event::Message(message) => {
                    assert!(matches!(events.next().await, Event::End));
                    return (next, message, SystemTime::now());
                }
                Event::End => panic!("ended without a word after {next}"),
            }
        }
    });
    let (acked, code, refused_at) = publish_until_refused(&mut line).await;
    assert_eq!(code, UNAUTHENTICATED);
    assert!(acked > 10 && refused_at >= at(exp), "served until it ran out");
    assert!(refused_at < end + LATE_MAX, "{:?} late", refused_at.duration_since(end));
    // Records of others go on, and are not delivered to the one whose token ran out.
    for id in 1..=5 {
        assert_eq!(steady.publish(NAME, id, &[b"later"]).await.code, None);
    }
    let (delivered, last, ended_at) = reading.await.unwrap();
    assert_eq!(last["type"], "shard_moved", "{last}");
    assert_eq!(last["resume_from"], delivered, "it names the next offset");
    assert!(ended_at < end + LATE_MAX, "{:?} late", ended_at.duration_since(end));
    for client in [&reader, &writer] {
        let error = client.closed().await;
        assert_eq!(application_close(&error), Some((1, "credentials expired".to_owned())), "{error:?}");
    }
    assert!(SystemTime::now() < end + Duration::from_secs(2) + LATE_MAX, "closed two seconds later");
    // Where it ended it goes on, with a new token.
    let again = issuer.client().await;
    let token = issuer.signer.sign(&claims("short"));
    let start = json!({"offset": delivered});
    let (answer, events) = again.subscribe((TENANT, &token), (NAMESPACE, "s"), 0, start).await;
    assert_eq!(answer["start_offset"], delivered);
    events.unwrap().records(delivered, 5).await;
    assert_eq!(steady.publish(NAME, 6, &[b"x"]).await.code, None, "the other identity is not touched");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_newer_token_on_another_stream_extends_the_identity_and_replaces_its_rights() {
    let issuer = Issuer::start().await;
    let exp = now_s() + 1;
    let short = issuer.signer.sign(&Claims { exp, ..claims("app") });
    let client = issuer.client().await;
    let (_, events) = client.subscribe((TENANT, &short), (NAMESPACE, "s"), 0, json!("latest")).await;
    let mut events = events.unwrap();
    let mut line = client.authed(TENANT, &short).await;
    client.authed(TENANT, &issuer.signer.sign(&claims("app"))).await;
    let past = at(exp + LEEWAY_S + 2);
    let mut number = 0;
    while SystemTime::now() < past {
        let ack = line.publish(NAME, number + 1, &[b"x"]).await;
        assert_eq!(ack.code, None, "{ack:?}");
        number += 1;
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    events.records(0, usize::try_from(number).unwrap()).await;
    // A still newer one without the right to publish.
    let narrow = vec![format!("stream.subscribe:stream:{TENANT}/*/*")];
    let narrow = Claims { perms: narrow, exp: now_s() + 7_200, ..claims("app") };
    client.authed(TENANT, &issuer.signer.sign(&narrow)).await;
    assert_eq!(line.publish(NAME, number + 1, &[b"x"]).await.code, Some(FORBIDDEN));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_token_for_all_time_is_a_token() {
    let mut issuer = Issuer::start().await;
    let client = issuer.client().await;
    for exp in [u64::MAX, u64::MAX - 4, u64::MAX / 2] {
        let token = issuer.signer.sign(&Claims { exp, ..claims("for ever") });
        for _ in 0..2 {
            let mut line = client.authed(TENANT, &token).await;
            assert_eq!(line.publish(NAME, 1, &[b"x"]).await.code, None);
        }
    }
    // A few of the broker's looks at its deadlines later it still is.
    let sweeps = issuer.broker.metric("felix_broker_turns_total").unwrap() + 20;
    let mut line = client.authed(TENANT, &issuer.signer.sign(&claims("app"))).await;
    let began = Instant::now();
    let mut number = 0;
    while issuer.broker.metric("felix_broker_turns_total").unwrap() < sweeps
        || began.elapsed().as_millis() < 300
    {
        number += 1;
        assert_eq!(line.publish(NAME, number, &[b"x"]).await.code, None);
    }
    issuer.broker.assert_well();
}
