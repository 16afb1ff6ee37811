//! Requests about the members of groups that are refused before anybody looks at the group.

use felix_wire::client::{GroupHeartbeat, GroupJoin, GroupLeave, GroupMembers};
use felix_wire::id::MembershipId;

use super::*;

fn join(stream: &str, group: &str, member: &str, term_ms: Option<u64>) -> Message<'static> {
    Message::GroupJoin(GroupJoin {
        tenant_id: TENANT.into(),
        namespace: NAMESPACE.into(),
        stream: stream.to_owned().into(),
        group: group.to_owned().into(),
        member: member.to_owned().into(),
        instance: 1,
        term_ms,
        request_id: RequestId(1),
    })
}

fn heartbeat(member: &str) -> Message<'static> {
    Message::GroupHeartbeat(GroupHeartbeat {
        tenant_id: TENANT.into(),
        namespace: NAMESPACE.into(),
        stream: "s".into(),
        group: "g".into(),
        member: member.to_owned().into(),
        session: MembershipId(1),
        released: Vec::new(),
        seen: None,
        wait_ms: 0,
        request_id: RequestId(1),
    })
}

fn leave() -> Message<'static> {
    Message::GroupLeave(GroupLeave {
        tenant_id: TENANT.into(),
        namespace: NAMESPACE.into(),
        stream: "s".into(),
        group: "g".into(),
        member: "m".into(),
        session: MembershipId(1),
        request_id: RequestId(1),
    })
}

fn members() -> Message<'static> {
    Message::GroupMembers(GroupMembers {
        tenant_id: TENANT.into(),
        namespace: NAMESPACE.into(),
        stream: "s".into(),
        group: "g".into(),
        request_id: RequestId(1),
    })
}

fn refusal(pair: &mut Pair, stream: StreamId, message: &Message<'_>) -> (ErrorCode, String) {
    pair.send(stream, message);
    let frame = pair.next(stream).expect("an answer");
    match Message::decode(&frame.payload).expect("a message") {
        Message::Error(error) => (error.code.expect("a code"), error.message.into_owned()),
        other => panic!("{other:?}"),
    }
}

#[test]
fn to_be_a_member_needs_the_right_to_consume_and_to_see_them_that_to_manage_the_group() {
    let mut pair = Pair::new(CoreLimits::default(), true);
    let consumes = pair.authed(&token("c", &["stream.subscribe"]));
    let manages = pair.authed(&token("m", &["stream.manage"]));
    for message in [join("s", "g", "m", None), heartbeat("m"), leave(), members()] {
        let may_consume = !matches!(message, Message::GroupMembers(_));
        let (may, may_not) = if may_consume { (consumes, manages) } else { (manages, consumes) };
        assert_eq!(refusal(&mut pair, may_not, &message).0, ErrorCode::Forbidden, "{message:?}");
        let (code, why) = refusal(&mut pair, may, &message);
        assert_eq!((code, why.contains("durable")), (ErrorCode::InvalidRequest, true), "{why}");
    }
    let (code, _) = refusal(&mut pair, consumes, &join("nowhere", "g", "m", None));
    assert_eq!(code, ErrorCode::NotFound);
}

#[test]
fn names_and_terms_that_cannot_be_are_refused_with_their_reason() {
    let mut pair = Pair::new(CoreLimits::default(), true);
    let stream = pair.authed(&token("c", &["stream.subscribe"]));
    for name in ["", "a\nb", &"m".repeat(129)] {
        for message in [join("s", "g", name, None), heartbeat(name)] {
            let (code, why) = refusal(&mut pair, stream, &message);
            assert_eq!(
                (code, why.contains("a member has a name")),
                (ErrorCode::InvalidRequest, true),
                "{why}"
            );
        }
    }
    for group in ["", "a\nb", &"g".repeat(256)] {
        let (code, why) = refusal(&mut pair, stream, &join("s", group, "m", None));
        assert_eq!((code, why.contains("a group has a name")), (ErrorCode::InvalidRequest, true), "{why}");
    }
    for term in [0, 999, 600_001, u64::MAX] {
        let (code, why) = refusal(&mut pair, stream, &join("s", "g", "m", Some(term)));
        assert_eq!((code, why.contains("a term has")), (ErrorCode::InvalidRequest, true), "{why}");
    }
}
