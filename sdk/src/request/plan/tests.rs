//! Every kind of failure, for every kind of request.

use super::*;

fn refusal(code: ErrorCode) -> Refusal {
    let retry = code.default_retry();
    Refusal { code: Some(code), retry, message: "no".to_owned(), reason: None, retry_after: None }
}

fn none(error: Error, sent: bool) -> NoAnswer {
    NoAnswer { error, sent }
}

fn plan(repeat: Repeat) -> (Plan, Instant) {
    let now = Instant::now();
    (Plan::new(repeat, now, &Deadlines::default()), now)
}

fn again(next: &Next) -> bool {
    matches!(next, Next::Again { .. })
}

fn unknown(next: &Next) -> bool {
    matches!(next, Next::Fail(RequestError::OutcomeUnknown { .. }))
}

#[test]
fn a_write_that_may_have_been_applied_is_repeated_only_when_that_changes_nothing() {
    for repeat in [Repeat::Read, Repeat::Same, Repeat::Twice] {
        let (mut plan, now) = plan(repeat);
        let next = plan.unanswered(none(Error::lost("cut"), true), now, 0);
        assert_eq!(again(&next), repeat != Repeat::Twice, "{repeat:?}");
        assert_eq!(unknown(&next), repeat == Repeat::Twice, "{repeat:?}");
        assert_eq!(plan.maybe_applied(), repeat != Repeat::Read);
    }
    for repeat in [Repeat::Read, Repeat::Same, Repeat::Twice] {
        let (mut plan, now) = plan(repeat);
        let next = plan.refused(refusal(ErrorCode::QuorumTimeout), now, 0);
        assert_eq!((again(&next), unknown(&next)), (repeat != Repeat::Twice, repeat == Repeat::Twice));
    }
}

#[test]
fn what_was_certainly_not_applied_is_tried_again_for_a_while() {
    for repeat in [Repeat::Read, Repeat::Same, Repeat::Twice] {
        for code in
            [ErrorCode::Overloaded, ErrorCode::ShardUnavailable, ErrorCode::Draining, ErrorCode::NotLeader]
        {
            let (mut plan, now) = plan(repeat);
            assert!(again(&plan.refused(refusal(code.clone()), now, 0)), "{code:?}");
            let late = now + Duration::from_secs(61);
            let failed = plan.refused(refusal(code.clone()), late, 0);
            assert_eq!(failed, Next::Fail(RequestError::Refused(refusal(code))));
        }
        let (mut plan, now) = plan(repeat);
        assert!(again(&plan.unanswered(none(Error::lost("cut"), false), now, 0)));
        let failed = plan.unanswered(none(Error::lost("cut"), false), now + Duration::from_secs(61), 0);
        assert_eq!(failed, Next::Fail(RequestError::Unavailable(Error::lost("cut"))));
    }
}

#[test]
fn after_a_copy_that_may_have_been_applied_a_refusal_is_no_certainty() {
    let (mut same, now) = plan(Repeat::Same);
    assert!(again(&same.unanswered(none(Error::lost("cut"), true), now, 0)));
    assert!(unknown(&same.refused(refusal(ErrorCode::Forbidden), now, 0)));
    let (mut read, now) = plan(Repeat::Read);
    assert!(again(&read.unanswered(none(Error::lost("cut"), true), now, 0)));
    let forbidden = refusal(ErrorCode::Forbidden);
    assert_eq!(read.refused(forbidden.clone(), now, 0), Next::Fail(RequestError::Refused(forbidden)));
}

#[test]
fn what_cannot_pass_fails_at_once_and_a_wait_beyond_the_patience_is_not_begun() {
    for code in
        [ErrorCode::InvalidRequest, ErrorCode::Forbidden, ErrorCode::StaleClaim, ErrorCode::LimitExceeded]
    {
        let (mut plan, now) = plan(Repeat::Same);
        assert_eq!(
            plan.refused(refusal(code.clone()), now, 0),
            Next::Fail(RequestError::Refused(refusal(code)))
        );
    }
    for error in [Error::Closed, Error::NotServed { what: "x" }, Error::config("no")] {
        let (mut plan, now) = plan(Repeat::Read);
        let next = plan.unanswered(none(error.clone(), false), now, 0);
        assert_eq!(next, Next::Fail(RequestError::Unavailable(error)));
    }
    let (mut plan, now) = plan(Repeat::Twice);
    let mut slow = refusal(ErrorCode::Overloaded);
    slow.retry_after = Some(Duration::from_secs(600));
    assert_eq!(plan.refused(slow.clone(), now, 0), Next::Fail(RequestError::Refused(slow)));
    let mut soon = refusal(ErrorCode::Overloaded);
    soon.retry_after = Some(Duration::from_secs(2));
    assert_eq!(plan.refused(soon, now, 0), Next::Again { after: Duration::from_secs(2), look: false });
}

#[test]
fn a_stream_whose_identity_ran_out_is_replaced_once() {
    let (mut plan, now) = plan(Repeat::Twice);
    let refused = refusal(ErrorCode::Unauthenticated);
    assert_eq!(plan.refused(refused.clone(), now, 0), Next::Again { after: Duration::ZERO, look: false });
    assert_eq!(plan.refused(refused.clone(), now, 0), Next::Fail(RequestError::Refused(refused)));
    let error = Error::Auth(refusal(ErrorCode::Unauthenticated));
    let next = plan.unanswered(none(error.clone(), false), now, 0);
    assert_eq!(next, Next::Fail(RequestError::Unavailable(error)));
}

#[test]
fn redirects_are_followed_three_times_and_never_in_a_circle() {
    let owner = |node: &str| ShardOwner {
        shard: 0,
        node_id: Some(node.to_owned()),
        addr: Some("127.0.0.1:5".to_owned()),
        core: None,
        generation: 1,
        unavailable: None,
    };
    let (mut circle, now) = plan(Repeat::Read);
    assert_eq!(circle.elsewhere(owner("a"), now, 0), Next::Ask(owner("a")));
    assert!(again(&circle.elsewhere(owner("a"), now, 0)), "later, when somebody may lead");
    assert_eq!(circle.elsewhere(owner("a"), now, 0), Next::Ask(owner("a")), "a new round");
    let (mut far, now) = plan(Repeat::Read);
    for node in ["a", "b", "c"] {
        assert_eq!(far.elsewhere(owner(node), now, 0), Next::Ask(owner(node)));
    }
    assert!(again(&far.elsewhere(owner("d"), now, 0)));
    let nowhere = ShardOwner { addr: None, ..owner("a") };
    let late = now + Duration::from_secs(11);
    let Next::Fail(RequestError::Refused(refused)) = far.elsewhere(nowhere, late, 0) else { panic!() };
    assert_eq!(refused.code, Some(ErrorCode::NotLeader));
}
