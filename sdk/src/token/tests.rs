use std::sync::atomic::{AtomicUsize, Ordering};

use super::*;

fn jwt(exp_s: u64, tag: &str) -> Arc<str> {
    let claims = URL_SAFE_NO_PAD.encode(format!("{{\"exp\":{exp_s},\"jti\":\"{tag}\"}}"));
    Arc::from(format!("e30.{claims}.sig"))
}

fn provider(answers: Vec<Result<Arc<str>, &'static str>>) -> (Tokens, Arc<AtomicUsize>) {
    let calls = Arc::new(AtomicUsize::new(0));
    let counter = calls.clone();
    let source = TokenSource::Provider(Arc::new(move || {
        let call = counter.fetch_add(1, Ordering::SeqCst);
        let answer = answers.get(call).cloned().unwrap_or(Err("no more answers"));
        Box::pin(async move { answer.map(|token| token.to_string()).map_err(Into::into) })
    }));
    (Tokens::new(source), calls)
}

#[test]
fn a_token_is_kept_until_two_thirds_of_its_life() {
    let mut cell = TokenCell::default();
    assert_eq!(cell.plan(0), Plan::Ask { fallback: None });
    let token = jwt(90, "a");
    cell.obtained(token.clone(), 0);
    assert_eq!(cell.plan(59_999), Plan::Use(token.clone()));
    assert_eq!(cell.plan(60_000), Plan::Ask { fallback: Some(token.clone()) });
    assert_eq!(cell.renewal_in(10_000), Some(Duration::from_secs(50)));
    cell.failed(60_000);
    assert_eq!(cell.plan(64_999), Plan::Use(token.clone()));
    assert_eq!(cell.plan(65_000), Plan::Ask { fallback: Some(token) });
    assert_eq!(cell.plan(90_000), Plan::Ask { fallback: None });
}

#[test]
fn an_unchanged_token_is_not_asked_for_in_a_circle() {
    let mut cell = TokenCell::default();
    let token = jwt(90, "a");
    cell.obtained(token.clone(), 60_000);
    cell.obtained(token.clone(), 89_999);
    assert_eq!(cell.plan(89_999), Plan::Use(token));
}

#[test]
fn a_token_without_a_readable_expiry_is_kept_until_refused() {
    for text in ["opaque", "a.b.c", "e30.e30.x", "e30.!!!.x", "e30.eyJleHAiOi0xfQ.x"] {
        let mut cell = TokenCell::default();
        cell.obtained(Arc::from(text), 5);
        assert_eq!(cell.plan(u64::MAX), Plan::Use(Arc::from(text)), "{text}");
        assert_eq!(cell.renewal_in(5), None);
    }
}

#[tokio::test]
async fn a_refused_token_is_replaced_once_and_a_fixed_one_never() {
    let (tokens, calls) = provider(vec![Ok("one".into()), Ok("two".into())]);
    assert_eq!(&*tokens.current().await.unwrap(), "one");
    assert_eq!(tokens.after_refusal("one").await.unwrap().as_deref(), Some("two"));
    // A second stream refused with the first token finds the newer one without another call.
    assert_eq!(tokens.after_refusal("one").await.unwrap().as_deref(), Some("two"));
    assert_eq!(calls.load(Ordering::SeqCst), 2);
    let fixed = Tokens::new(TokenSource::Fixed("f".into()));
    assert_eq!(fixed.after_refusal("f").await.unwrap(), None);
}

#[tokio::test]
async fn a_failed_refresh_uses_the_old_token_while_it_lives() {
    let now_s = unix_millis() / 1_000;
    // Already past two thirds when obtained: the next use asks again.
    let (tokens, calls) = provider(vec![Ok(jwt(now_s + 1_000, "a")), Err("down")]);
    let token = tokens.current().await.unwrap();
    tokens.cell.lock().await.held.as_mut().unwrap().life.as_mut().unwrap().refresh_at_ms = 0;
    assert_eq!(tokens.current().await.unwrap(), token);
    assert_eq!(calls.load(Ordering::SeqCst), 2);
    // Within the pause after the failure nobody asks.
    assert_eq!(tokens.current().await.unwrap(), token);
    assert_eq!(calls.load(Ordering::SeqCst), 2);
}

#[tokio::test(start_paused = true)]
async fn a_provider_that_never_answers_is_given_up() {
    let tokens = Tokens::new(TokenSource::Provider(Arc::new(|| Box::pin(std::future::pending()))));
    assert!(matches!(tokens.current().await, Err(Error::Token { .. })));
}

#[tokio::test]
async fn a_token_file_is_read_again_after_a_refusal() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("token");
    std::fs::write(&path, "first\n").unwrap();
    let tokens = Tokens::new(TokenSource::File(path.clone()));
    assert_eq!(&*tokens.current().await.unwrap(), "first");
    assert_eq!(tokens.after_refusal("first").await.unwrap(), None);
    std::fs::write(&path, "second").unwrap();
    assert_eq!(tokens.after_refusal("first").await.unwrap().as_deref(), Some("second"));
    assert_eq!(&*tokens.current().await.unwrap(), "second");
}
