use super::*;
use crate::id::{CoreId, Offset, ProducerId, Sequence, ShardIndex, SubscriptionId};
use crate::limits::JSON_DEPTH_MAX;

fn decode(text: &str) -> Result<Message<'_>, DecodeError> {
    Message::decode(text.as_bytes())
}

fn refused(text: &str) -> bool {
    matches!(decode(text), Err(DecodeError::Malformed(_)))
}

fn written(message: &Message<'_>) -> String {
    let mut out = BytesMut::new();
    message.encode_frame(&mut out);
    String::from_utf8(out[HEADER_LEN..].to_vec()).expect("UTF-8")
}

#[test]
fn names_are_borrowed_from_the_payload() {
    let text = r#"{"type":"cache_watch","tenant_id":"t","namespace":"n","cache":"c","prefix":"p"}"#;
    let Ok(Message::CacheWatch(watch)) = decode(text) else { panic!("a watch") };
    assert!(matches!(watch.tenant_id, Cow::Borrowed("t")));
    assert!(matches!(watch.prefix, Some(Cow::Borrowed("p"))), "optional text too");
    let text = r#"{"type":"topology_view","brokers":[{"node_id":"a","addr":"h:1"}]}"#;
    let Ok(Message::TopologyView(view)) = decode(text) else { panic!("a view") };
    assert!(matches!(view.brokers[0].addr, Cow::Borrowed("h:1")), "and text inside arrays");
}

#[test]
fn nesting_is_bounded_also_in_members_nobody_reads() {
    let nested = |levels: usize| {
        let (open, close) = ("[".repeat(levels - 1), "]".repeat(levels - 1));
        format!(r#"{{"type":"ok","x":{open}{close}}}"#)
    };
    assert_eq!(decode(&nested(JSON_DEPTH_MAX)), Ok(Message::Ok));
    assert!(refused(&nested(JSON_DEPTH_MAX + 1)));
    let unclosed = format!(r#"{{"type":"ok","x":{}"#, "{\"a\":".repeat(100_000));
    assert!(refused(&unclosed));
}

#[test]
fn a_repeated_member_is_malformed_wherever_it_stands() {
    for text in [
        r#"{"type":"ok","type":"ok"}"#,
        r#"{"type":"ok","x":1,"x":1}"#,
        r#"{"type":"ok","x":{"y":[{"z":1,"z":2}]}}"#,
        r#"{"type":"ok","x":1,"\u0078":1}"#,
        r#"{"type":"new","a":1,"a":1}"#,
    ] {
        assert!(refused(text), "{text}");
    }
    let many: String = (0..40).map(|n| format!(",\"m{n}\":1")).collect();
    assert_eq!(decode(&format!(r#"{{"type":"ok"{many}}}"#)), Ok(Message::Ok));
    assert!(refused(&format!(r#"{{"type":"ok"{many},"m7":1}}"#)));
    assert_eq!(decode(r#"{"type":"ok","x":{"y":1},"y":1}"#), Ok(Message::Ok), "one name in two objects");
}

#[test]
fn what_is_not_one_json_object_is_malformed() {
    for text in [
        "",
        " ",
        "null",
        "[]",
        "\"ok\"",
        "{}",
        r#"{"type":null}"#,
        r#"{"type":"ok",}"#,
        r#"{"type":"ok"}{}"#,
        r#"{"type":"ok"}]"#,
        r#"{"type":"ok""x":1}"#,
        r#"{"type":"ok","x":tru}"#,
        r#"{"type":"ok","x":01}"#,
        r#"{"type":"ok","x":"\ud800"}"#,
        r#"{"type":"ok","x":"\q"}"#,
        r#"{"type":"new","x":tru}"#,
        r#"{"type":"new","x":}"#,
        r#"{"type":"ok"#,
        "{\"type\":\"o\nk\"}",
        r#"{'type':'ok'}"#,
    ] {
        assert!(refused(text), "{text}");
    }
    assert_eq!(
        Message::decode(b"{\"type\":\"ok\",\"x\":\"\xff\"}").map_err(|error| error.class()),
        Err("malformed")
    );
    assert_eq!(decode("\n{\"type\":\"ok\"}\t\r "), Ok(Message::Ok));
}

#[test]
fn every_truncation_of_a_message_is_malformed() {
    let text = r#"{"type":"publish_batch","tenant_id":"t","namespace":"n","stream":"s","payloads":["YQ=="],"key":"azc=","request_id":1}"#;
    assert!(decode(text).is_ok());
    for end in 0..text.len() {
        assert!(refused(&text[..end]), "{}", &text[..end]);
    }
}

#[test]
fn an_unknown_type_keeps_its_name_and_its_request() {
    for (text, id) in [
        (r#"{"type":"a\u0062c","request_id":18446744073709551615}"#, Some(RequestId(u64::MAX))),
        (r#"{"type":"abc","request_id":18446744073709551616}"#, None),
        (r#"{"type":"abc","request_id":"5"}"#, None),
        (r#"{"type":"abc","request_id":-1}"#, None),
        (r#"{"type":"abc","x":{"request_id":5}}"#, None),
    ] {
        let Ok(Message::Unknown(unknown)) = decode(text) else { panic!("{text}") };
        assert_eq!((unknown.type_name.as_ref(), unknown.request_id), ("abc", id), "{text}");
    }
}

#[test]
fn payloads_of_a_json_batch_become_one_run() {
    let text = r#"{"type":"publish_batch","tenant_id":"t","namespace":"n","stream":"s","payloads":["YQ==","","YmM="]}"#;
    let Ok(Message::PublishBatch(batch)) = decode(text) else { panic!("a batch") };
    assert_eq!(batch.payloads.count(), 3);
    assert_eq!(&batch.payloads.bytes()[..], b"\0\0\0\x01a\0\0\0\0\0\0\0\x02bc");
    assert_eq!(written(&Message::PublishBatch(batch)), text);
}

#[test]
fn private_members_are_absent_until_they_are_set() {
    let mut ok = AuthOk { server_flags: Flags::KNOWN, ..AuthOk::default() };
    assert_eq!(written(&Message::AuthOk(ok.clone())), r#"{"type":"auth_ok","server_flags":32767}"#);
    (ok.cores, ok.core) = (Some(4), Some(CoreId(3)));
    let text = r#"{"type":"auth_ok","server_flags":32767,"cores":4,"core":3}"#;
    assert_eq!(written(&Message::AuthOk(ok.clone())), text);
    assert_eq!(decode(text), Ok(Message::AuthOk(ok)));
    let subscribed = Subscribed {
        subscription_id: SubscriptionId(1),
        start_offset: None,
        live_offset: Some(Offset(2)),
        queue_capacity: None,
        boot: Some(u64::MAX),
    };
    let text = r#"{"type":"subscribed","subscription_id":1,"live_offset":2,"boot":18446744073709551615}"#;
    assert_eq!(written(&Message::Subscribed(subscribed)), text);
    assert_eq!(decode(text), Ok(Message::Subscribed(subscribed)));
    let text =
        r#"{"type":"shard_owners_view","owners":[{"shard":0,"generation":1,"core":2}],"request_id":1}"#;
    let Ok(Message::ShardOwnersView(view)) = decode(text) else { panic!("a view") };
    assert_eq!((view.owners[0].shard, view.owners[0].core), (ShardIndex(0), Some(CoreId(2))));
    assert_eq!(written(&Message::ShardOwnersView(view)), text);
    for (durable, member) in
        [(None, ""), (Some(false), r#","durable":false"#), (Some(true), r#","durable":true"#)]
    {
        let text = format!(r#"{{"type":"stream_shards_view","shards":3,"request_id":9{member}}}"#);
        let Ok(Message::StreamShardsView(view)) = decode(&text) else { panic!("a view") };
        assert_eq!(view.durable, durable);
        assert_eq!(written(&Message::StreamShardsView(view)), text);
    }
    for (number, members) in [
        (None, ""),
        (Some(u64::MAX), r#","producer_id":18446744073709551615,"sequence":18446744073709551615"#),
    ] {
        let text = format!(
            r#"{{"type":"counter_add","tenant_id":"t","namespace":"n","cache":"c","key":"k","delta":-1,"request_id":9{members}}}"#
        );
        let Ok(Message::CounterAdd(add)) = decode(&text) else { panic!("an add") };
        assert_eq!((add.producer_id, add.sequence), (number.map(ProducerId), number.map(Sequence)));
        assert_eq!(written(&Message::CounterAdd(add)), text);
        let text = format!(
            r#"{{"type":"commit","tenant_id":"t","namespace":"n","stream":"s","entity_key":"","event":"","changes":[],"request_id":9{members}}}"#
        );
        let Ok(Message::Commit(commit)) = decode(&text) else { panic!("a commit") };
        assert_eq!((commit.producer_id, commit.sequence), (number.map(ProducerId), number.map(Sequence)));
        assert_eq!(written(&Message::Commit(commit)), text);
    }
}

#[test]
fn messages_about_members_are_written_as_the_page_says() {
    let names = r#""tenant_id":"t","namespace":"n","stream":"s","group":"g""#;
    let lease = r#"{"shard":3,"lease":1800000000000000,"left_ms":900}"#;
    let back = r#"{"shard":4,"lease":18446744073709551615,"left_ms":0,"give_back":true}"#;
    let texts = [
        format!(
            r#"{{"type":"group_join",{names},"member":"m","instance":18446744073709551615,"request_id":1}}"#
        ),
        format!(
            r#"{{"type":"group_join",{names},"member":"m","instance":0,"term_ms":10000,"request_id":1}}"#
        ),
        format!(r#"{{"type":"group_heartbeat",{names},"member":"m","session":7,"request_id":1}}"#),
        format!(
            r#"{{"type":"group_heartbeat",{names},"member":"m","session":7,"released":[{{"shard":3,"lease":9}}],"seen":2,"wait_ms":3000,"request_id":1}}"#
        ),
        format!(r#"{{"type":"group_leave",{names},"member":"m","session":7,"request_id":1}}"#),
        format!(r#"{{"type":"group_members",{names},"request_id":1}}"#),
        format!(
            r#"{{"type":"group_leases","session":7,"version":2,"term_ms":10000,"members":3,"leases":[{lease},{back}],"request_id":1}}"#
        ),
        format!(
            r#"{{"type":"group_member_list","members":[{{"member":"m","principal":"p","session":7,"left_ms":5,"leases":[{back}]}}],"request_id":1}}"#
        ),
        r#"{"type":"group_poll","tenant_id":"t","namespace":"n","stream":"s","shard":0,"group":"g","max_records":1,"wait_ms":0,"request_id":1,"lease":9}"#
            .to_owned(),
        r#"{"type":"group_ack","tenant_id":"t","namespace":"n","stream":"s","shard":0,"group":"g","offset":1,"request_id":1,"lease":9}"#
            .to_owned(),
        r#"{"type":"group_ack","tenant_id":"t","namespace":"n","stream":"s","shard":0,"group":"g","offset":1,"request_id":1,"lease":9,"count":64}"#
            .to_owned(),
    ];
    for text in texts {
        let message = decode(&text).unwrap_or_else(|error| panic!("{text}: {error}"));
        assert!(!matches!(message, Message::Unknown(_)), "{text}");
        assert_eq!(written(&message), text);
    }
}

#[test]
fn null_reads_as_absent_for_every_kind_of_optional_member() {
    let text = r#"{"type":"group_poll","tenant_id":"t","namespace":"n","stream":"s","shard":0,"group":"g","max_records":1,"wait_ms":null,"request_id":1,"consumer":null,"reclaim":null,"visibility_ms":null}"#;
    let Ok(Message::GroupPoll(poll)) = decode(text) else { panic!("a poll") };
    assert_eq!((poll.wait_ms, poll.consumer, poll.reclaim, poll.visibility_ms), (0, None, false, 0));
    let text = r#"{"type":"publish","tenant_id":"t","namespace":"n","stream":"s","payload":"","key":null,"ack":null}"#;
    let Ok(Message::Publish(publish)) = decode(text) else { panic!("a publish") };
    assert_eq!((publish.key, publish.ack), (None, None));
}

#[test]
fn a_token_does_not_show_in_debug_output() {
    let Ok(message) = decode(r#"{"type":"auth","tenant_id":"t","token":"secret"}"#) else { panic!("auth") };
    assert!(!format!("{message:?}").contains("secret"));
}

#[test]
fn operator_views_keep_every_member() {
    let text = concat!(
        r#"{"type":"shard_inspect_info","view":{"node_id":"a","shards":2,"role":"leader","phase":"active","#,
        r#""serving":true,"reason":"r","detail":"d","generation":3,"assignment":{"generation":3,"leader":"a","#,
        r#""replicas":["b","c"],"draining":false,"successor":"b"},"fence":{"took":["b"],"pending":[],"attempts":1,"#,
        r#""retry_in_ms":5},"lease":{"held":true,"remaining_ms":9},"tail":7,"committed":6,"accepted_generation":3,"#,
        r#""replicas":[{"node_id":"b","role":"follower","next_offset":7,"lag":0,"fence":true,"state":"live","#,
        r#""halted":"diverged"}]},"request_id":1}"#
    );
    let message = decode(text).expect("a view");
    assert_eq!(written(&message), text);
    let text = concat!(
        r#"{"type":"subscriptions_list_info","node_id":"a","subscriptions":[{"tenant_id":"t","namespace":"n","#,
        r#""stream":"s","shard":0,"subscriber_id":1,"subscription_id":2,"connection":3,"peer":"p","principal":"u","#,
        r#""policy":"block","depth":1,"capacity":2,"dropped":0,"position":4,"tail":5,"age_ms":6}],"next_cursor":"#,
        r#"{"tenant_id":"t","namespace":"n","stream":"s","shard":0,"subscriber_id":1},"request_id":1}"#
    );
    let message = decode(text).expect("a list");
    assert_eq!(written(&message), text);
}

#[test]
fn a_run_is_cut_at_records_without_copying() {
    let records = Records::from_payloads(["a", "", "bcd"]);
    assert_eq!((records.count(), records.payload_bytes(), records.encoded_len()), (3, 4, 16));
    for n in 0..5_u32 {
        let (first, second) = records.split_at_record(n);
        assert_eq!(first.count(), n.min(3));
        let joined: Vec<&[u8]> = first.iter().chain(second.iter()).collect();
        assert_eq!(joined, [&b"a"[..], b"", b"bcd"]);
        assert_eq!(first.bytes().as_ptr(), records.bytes().as_ptr());
        assert_eq!(Records::decode(second.count(), second.bytes()), Ok(second));
    }
    let shared: Vec<_> = records.shared().collect();
    assert_eq!(shared[2].as_ptr(), records.bytes()[13..].as_ptr());
}

#[test]
fn text_too_long_for_an_ack_is_cut_between_characters() {
    let message = "é".repeat(40_000);
    let ack = PublishAck {
        request_id: RequestId(1),
        outcome: AckOutcome::Error { message: Cow::Owned(message), code: None },
        owner: None,
    };
    let mut out = BytesMut::new();
    ack.encode_frame(&mut out);
    let read = PublishAck::decode(ack.flags().bits(), &out[HEADER_LEN..]).expect("an ack");
    let AckOutcome::Error { message, .. } = read.outcome else { panic!("an error") };
    assert_eq!(message.len(), 65_534);
}

#[test]
fn a_name_over_its_length_field_is_not_written() {
    let long = "n".repeat(65_536);
    let head =
        PublishHead { tenant: "t", namespace: "n", stream: &long, key: None, acked: None, producer: None };
    let mut out = BytesMut::new();
    assert_eq!(encode_publish(&head, [&b"x"[..]], &mut out), Err(EncodeError::NameTooLong(65_536)));
    let head = PublishHead { stream: "s", key: Some(long.as_bytes()), ..head };
    assert_eq!(encode_publish(&head, [&b"x"[..]], &mut out), Err(EncodeError::KeyTooLong(65_536)));
    assert!(out.is_empty());
    let head = PublishHead { key: Some(&long.as_bytes()[1..]), ..head };
    assert_eq!(encode_publish(&head, [&b"x"[..]], &mut out), Ok(()));
}
