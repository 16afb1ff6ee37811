use std::sync::Arc;
use std::time::Duration;

use felix_runtime::Tick;
use felix_wire::control::{Jwk, Jwks};

use super::Rng;
use crate::node::agent::keys::{FETCHES_MAX, KeyCache, Request};

/// Any 32 bytes in base64url are taken as a key here; nothing is verified.
const X: &str = "11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo";

fn at(ms: u64) -> Tick {
    Tick::ZERO + Duration::from_millis(ms)
}

fn jwks(kids: &[&str]) -> Jwks {
    Jwks { keys: kids.iter().map(|kid| Jwk::ed25519((*kid).to_owned(), X.to_owned())).collect() }
}

fn kids(cache: &mut KeyCache, tenant: &str) -> Option<Vec<String>> {
    let snapshot = cache.snapshot();
    let tenant = snapshot.tenants.get(tenant)?;
    Some(tenant.keys.iter().map(|(kid, _)| kid.to_string()).collect())
}

#[test]
fn many_tokens_with_an_unknown_key_cost_one_question_in_five_seconds() {
    let tenant: Arc<str> = "t".into();
    let mut cache = KeyCache::default();
    for i in 0..1_000 {
        assert_eq!(cache.request(&tenant, &format!("k{i}"), true, at(0)), Request::Wait);
    }
    assert_eq!(cache.next_fetch(at(0)), Some(Arc::clone(&tenant)));
    assert_eq!(cache.next_fetch(at(0)), None);
    assert_eq!(cache.request(&tenant, "k", true, at(10)), Request::Wait);
    cache.fetched(&tenant, Some(&jwks(&["k"])), at(100));
    assert!(cache.take_changed());
    assert_eq!(kids(&mut cache, "t"), Some(vec!["k".to_owned()]));
    assert_eq!(cache.request(&tenant, "made up", true, at(5_000)), Request::Answer);
    assert_eq!(cache.next_fetch(at(5_000)), None);
    assert_eq!(cache.request(&tenant, "rotated in", true, at(5_100)), Request::Wait);
    assert!(cache.next_fetch(at(5_100)).is_some());
}

#[test]
fn a_failed_question_is_remembered_and_keeps_the_keys() {
    let tenant: Arc<str> = "t".into();
    let mut cache = KeyCache::default();
    cache.request(&tenant, "k", true, at(0));
    cache.next_fetch(at(0));
    cache.fetched(&tenant, Some(&jwks(&["k"])), at(0));
    cache.request(&tenant, "new", true, at(6_000));
    cache.next_fetch(at(6_000));
    cache.fetched(&tenant, None, at(6_000));
    assert_eq!(kids(&mut cache, "t"), Some(vec!["k".to_owned()]));
    assert_eq!(cache.request(&tenant, "new", true, at(7_000)), Request::Answer);
    assert_eq!(cache.request(&tenant, "new", true, at(11_000)), Request::Wait);
}

#[test]
fn a_tenant_whose_first_question_failed_is_in_the_snapshot_without_keys() {
    let tenant: Arc<str> = "t".into();
    let mut cache = KeyCache::default();
    cache.request(&tenant, "k", true, at(0));
    assert_eq!(kids(&mut cache, "t"), None);
    cache.next_fetch(at(0));
    cache.fetched(&tenant, None, at(0));
    assert_eq!(kids(&mut cache, "t"), Some(Vec::new()));
}

#[test]
fn nobody_is_asked_about_a_tenant_that_the_catalog_does_not_hold() {
    let mut cache = KeyCache::default();
    assert_eq!(cache.request(&"stranger".into(), "k", false, at(0)), Request::Answer);
    assert_eq!(cache.next_fetch(at(0)), None);
}

#[test]
fn key_sets_are_read_again_after_an_hour_and_a_failure_then_keeps_them() {
    let tenant: Arc<str> = "t".into();
    let hour = 3_600_000;
    let mut cache = KeyCache::default();
    cache.request(&tenant, "k", true, at(0));
    cache.next_fetch(at(0));
    cache.fetched(&tenant, Some(&jwks(&["k"])), at(0));
    assert_eq!((cache.next_due(), cache.next_fetch(at(hour - 1))), (Some(at(hour)), None));
    assert!(cache.next_fetch(at(hour)).is_some());
    cache.fetched(&tenant, None, at(hour));
    assert_eq!(kids(&mut cache, "t"), Some(vec!["k".to_owned()]));
    assert_eq!(cache.next_due(), Some(at(hour + 5_000)));
    assert!(cache.next_fetch(at(hour + 5_000)).is_some());
    cache.fetched(&tenant, Some(&jwks(&["next"])), at(hour + 5_000));
    assert_eq!(kids(&mut cache, "t"), Some(vec!["next".to_owned()]));
}

#[test]
fn only_ed25519_signing_keys_are_taken() {
    let tenant: Arc<str> = "t".into();
    let mut set = jwks(&["good", "kty", "crv", "alg", "use", "x"]);
    set.keys[1].kty = "RSA".to_owned();
    set.keys[2].crv = "X25519".to_owned();
    set.keys[3].alg = "none".to_owned();
    set.keys[4].use_ = "enc".to_owned();
    set.keys[5].x = "not base64!".to_owned();
    let mut cache = KeyCache::default();
    cache.request(&tenant, "k", true, at(0));
    cache.next_fetch(at(0));
    cache.fetched(&tenant, Some(&set), at(0));
    assert_eq!(kids(&mut cache, "t"), Some(vec!["good".to_owned()]));
}

#[test]
fn tenants_that_were_deleted_are_forgotten() {
    let mut cache = KeyCache::default();
    for name in ["keep", "drop"] {
        let tenant: Arc<str> = name.into();
        cache.request(&tenant, "k", true, at(0));
        cache.next_fetch(at(0));
        cache.fetched(&tenant, Some(&jwks(&["k"])), at(0));
    }
    cache.take_changed();
    cache.retain(|tenant| tenant == "keep");
    assert!(cache.take_changed());
    assert!(kids(&mut cache, "keep").is_some() && kids(&mut cache, "drop").is_none());
}

#[test]
fn questions_are_bounded_and_every_request_is_answered_in_the_end() {
    for seed in 0..100 {
        let mut rng = Rng(seed);
        let mut cache = KeyCache::default();
        let tenants: Vec<Arc<str>> = (0..20).map(|i| format!("t{i}").into()).collect();
        let mut asked: Vec<Arc<str>> = Vec::new();
        let mut waiting: Vec<Arc<str>> = Vec::new();
        for step in 0..500 {
            let now = at(step * 50);
            let tenant = &tenants[rng.below(20) as usize];
            if cache.request(tenant, "unknown", true, now) == Request::Wait {
                waiting.push(Arc::clone(tenant));
            }
            while rng.below(3) > 0 {
                let Some(tenant) = cache.next_fetch(now) else { break };
                assert!(!asked.contains(&tenant), "seed {seed}: two questions for one tenant");
                asked.push(tenant);
                assert!(asked.len() <= FETCHES_MAX, "seed {seed}");
            }
            if !asked.is_empty() && rng.below(2) == 0 {
                let tenant = asked.swap_remove(rng.below(asked.len() as u64) as usize);
                cache.fetched(&tenant, (rng.below(2) == 0).then(|| jwks(&["k"])).as_ref(), now);
                assert!(cache.take_changed());
                waiting.retain(|w| *w != tenant);
            }
        }
        let end = at(500 * 50);
        loop {
            asked.extend(std::iter::from_fn(|| cache.next_fetch(end)));
            let Some(tenant) = asked.pop() else { break };
            cache.fetched(&tenant, None, end);
            waiting.retain(|w| *w != tenant);
        }
        assert!(waiting.is_empty(), "seed {seed}: {waiting:?} never answered");
    }
}
