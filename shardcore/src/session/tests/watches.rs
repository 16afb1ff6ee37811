//! Watches of a cache in memory, as a client that writes raw frames sees them.

use felix_wire::client::{CacheDelete, CacheWatch, CursorErrorReason, ShardMoved};
use felix_wire::id::{Offset, ShardIndex};

use super::caches::{encoded, put};
use felix_runtime::quic::VarInt;

use super::*;

/// The first key of each of the two shards that begins with `k`.
fn keys_of_shard(shard: u32) -> impl Iterator<Item = String> {
    let of = move |key: &String| {
        felix_wire::routing::shard_for(Some(key.as_bytes()), 2, KeyMapping::Modulo) == ShardIndex(shard)
    };
    (0..).map(|number| format!("k{number}")).filter(of)
}

fn key(shard: u32) -> String {
    keys_of_shard(shard).next().unwrap()
}

fn watch_of<'a>(key: Option<&'a str>, prefix: Option<&'a str>) -> CacheWatch<'a> {
    CacheWatch {
        tenant_id: TENANT.into(),
        namespace: NAMESPACE.into(),
        cache: "s".into(),
        key: key.map(Into::into),
        prefix: prefix.map(Into::into),
        shard: prefix.map(|_| ShardIndex(0)),
        from_offset: None,
        retained: false,
        subscription_id: None,
    }
}

fn rights() -> String {
    token("c", &["cache.read", "cache.write"])
}

impl Pair {
    /// One word for the answer to a watch on a stream of its own, and the event stream if there is one.
    fn watch(&mut self, token: &str, watch: CacheWatch<'_>) -> (String, Option<StreamId>) {
        let stream = self.authed(token);
        let known: Vec<StreamId> = self.inbox.keys().copied().collect();
        let mut bytes = encoded(&Message::CacheWatch(watch)).freeze();
        self.quic.write(self.conn, stream, &mut bytes);
        assert!(bytes.is_empty(), "the window of the test is large enough");
        self.quic.finish(self.conn, stream);
        let answer = (0..50).find_map(|_| {
            self.run(MS * 20);
            self.next(stream)
        });
        let answer = answer.expect("an answer");
        let opened = self.inbox.keys().copied().find(|id| id.dir() == Dir::Uni && !known.contains(id));
        let word = match Message::decode(&answer.payload).unwrap() {
            Message::CacheWatchStarted(started) => {
                if !self.deaf {
                    let hello = self.next(opened.expect("an event stream")).expect("its hello");
                    let Message::EventStreamHello(hello) = Message::decode(&hello.payload).unwrap() else {
                        panic!("{hello:?}")
                    };
                    assert_eq!(hello.subscription_id, started.subscription_id);
                }
                let resnapshot = if started.resnapshot { " anew" } else { "" };
                format!("from {}{resnapshot} {:?}", started.resume_offset, started.retained_count)
            }
            Message::SubscribeCursorError(error) => {
                assert_eq!(error.reason, CursorErrorReason::InFuture);
                format!("{} is behind {}", error.requested, error.available)
            }
            Message::Error(error) => format!("{:?}", error.code.expect("a code")),
            other => panic!("{other:?}"),
        };
        assert!(self.is_ended(stream), "our half ends with the answer");
        (word, opened)
    }

    /// A word for each event that has come, and for the last frame.
    fn events(&mut self, stream: StreamId) -> Vec<String> {
        let mut found = Vec::new();
        while let Some(frame) = self.next(stream) {
            found.push(match Message::decode(&frame.payload).unwrap() {
                Message::CacheEvent(event) => {
                    let value = event.value.map(|v| String::from_utf8_lossy(&v).into_owned());
                    format!("{}={}@{}", event.key, value.as_deref().unwrap_or("-"), event.offset)
                }
                Message::CacheWatchLagged(lagged) => format!("lagged {}", lagged.resume_from),
                Message::ShardMoved(ShardMoved { resume_from, .. }) => format!("moved {resume_from:?}"),
                Message::Error(error) => format!("{:?}", error.code.expect("a code")),
                other => panic!("{other:?}"),
            });
        }
        found
    }

    fn assert_nothing_held(&self) {
        let held = self.core.held(true);
        let mut of_watches = held.iter().filter(|(name, _)| name.contains("watch") || name.contains("event"));
        assert!(of_watches.all(|(_, held)| *held == 0), "{held:?}");
    }
}

#[test]
fn a_watch_of_a_key_or_prefix_is_answered_and_its_events_come_on_a_stream_of_their_own() {
    let mut pair = Pair::new(CoreLimits::default(), true);
    let writer = pair.authed(&rights());
    let mut of_first = keys_of_shard(0);
    let (one, two, elsewhere) = (of_first.next().unwrap(), of_first.next().unwrap(), key(1));
    pair.write(writer, &put(1, &one, b"before"));
    let (word, of_key) = pair.watch(&rights(), watch_of(Some(&one), None));
    assert_eq!(word, "from 1 None");
    let (word, of_prefix) = pair.watch(&rights(), watch_of(None, Some("k")));
    assert_eq!(word, "from 1 None");
    let current = CacheWatch { retained: true, ..watch_of(None, Some("")) };
    let (word, of_all) = pair.watch(&rights(), current);
    assert_eq!(word, "from 1 Some(1)");
    let nothing = CacheWatch { retained: true, ..watch_of(None, Some("none")) };
    assert_eq!(pair.watch(&rights(), nothing).0, "from 1 Some(0)");
    for (request, (key, value)) in [(&one, "x"), (&two, "y"), (&elsewhere, "z")].into_iter().enumerate() {
        pair.write(writer, &put(request as u64, key, value.as_bytes()));
    }
    let delete = Message::CacheDelete(CacheDelete {
        tenant_id: TENANT.into(),
        namespace: NAMESPACE.into(),
        cache: "s".into(),
        key: one.clone().into(),
        request_id: Some(RequestId(9)),
    });
    pair.send(writer, &delete);
    assert_eq!(pair.events(of_key.unwrap()), [format!("{one}=x@1"), format!("{one}=-@3")]);
    let all = [format!("{one}=x@1"), format!("{two}=y@2"), format!("{one}=-@3")];
    assert_eq!(pair.events(of_prefix.unwrap()), all);
    let mut with_current = vec![format!("{one}=before@0")];
    with_current.extend(all);
    assert_eq!(pair.events(of_all.unwrap()), with_current);
    let (word, resumed) =
        pair.watch(&rights(), CacheWatch { from_offset: Some(Offset(2)), ..watch_of(None, Some("")) });
    assert_eq!(word, "from 2 None");
    assert_eq!(pair.events(resumed.unwrap()), [format!("{two}=y@2"), format!("{one}=-@3")]);
    let future = CacheWatch { from_offset: Some(Offset(5)), ..watch_of(None, Some("")) };
    assert_eq!(pair.watch(&rights(), future), ("5 is behind 4".to_owned(), None));
}

#[test]
fn what_a_cache_in_memory_has_let_go_begins_with_the_current_values() {
    let mut pair = Pair::new(CoreLimits::default(), true);
    let writer = pair.authed(&rights());
    let one = key(0);
    for request in 0..3 {
        pair.write(writer, &put(request, &one, b"v"));
    }
    let (word, stream) =
        pair.watch(&rights(), CacheWatch { from_offset: Some(Offset(0)), ..watch_of(None, Some("")) });
    assert_eq!(word, "from 3 anew None", "nobody watched, so nothing was kept");
    assert_eq!(pair.events(stream.unwrap()), [format!("{one}=v@2")]);
}

#[test]
fn a_watch_needs_the_right_to_read_every_key_that_it_could_tell_of() {
    let mut pair = Pair::new(CoreLimits::default(), true);
    let on = |keys: &str| token("n", &[&format!("cache.read:cache:{TENANT}/{NAMESPACE}/s{keys}")]);
    let table = [
        (on("/k1"), Some("k1"), None, true),
        (on("/k1"), Some("k12"), None, false),
        (on("/k1"), None, Some("k1"), false),
        (on("/k1*"), None, Some("k1"), true),
        (on("/k1*"), None, Some("k12"), true),
        (on("/k1*"), None, Some("k"), false),
        (on("/k1*"), None, Some(""), false),
        (on(""), None, Some(""), true),
        (token("w", &["cache.write"]), Some("k1"), None, false),
        (token("s", &["stream.subscribe"]), None, Some(""), false),
    ];
    for (number, (token, key, prefix, allowed)) in table.into_iter().enumerate() {
        let (word, stream) = pair.watch(&token, watch_of(key, prefix));
        assert_eq!((word == "from 0 None", stream.is_some()), (allowed, allowed), "{number}: {word}");
        assert!(allowed || word == "Forbidden", "{number}: {word}");
    }
    let elsewhere = CacheWatch { tenant_id: "other".into(), ..watch_of(Some("k"), None) };
    assert_eq!(pair.watch(&rights(), elsewhere).0, "Forbidden");
}

#[test]
fn requests_that_make_no_sense_are_refused_and_any_key_may_be_watched() {
    let mut pair = Pair::new(CoreLimits::default(), true);
    let long = "k".repeat(65_536);
    let all = || watch_of(None, Some(""));
    let table = [
        (watch_of(Some("k"), Some("k")), "InvalidRequest"),
        (CacheWatch { prefix: None, ..all() }, "InvalidRequest"),
        (CacheWatch { shard: None, ..all() }, "InvalidRequest"),
        (CacheWatch { shard: Some(ShardIndex(2)), ..all() }, "InvalidRequest"),
        (CacheWatch { retained: true, from_offset: Some(Offset(0)), ..all() }, "InvalidRequest"),
        (watch_of(Some(&long), None), "InvalidRequest"),
        (watch_of(None, Some(&long)), "InvalidRequest"),
        (CacheWatch { cache: "nowhere".into(), ..all() }, "NotFound"),
        (CacheWatch { from_offset: Some(Offset(u64::MAX)), ..all() }, "18446744073709551615 is behind 0"),
        (watch_of(Some(""), None), "from 0 None"),
        (watch_of(Some(&long[1..]), None), "from 0 None"),
        (watch_of(None, Some("\0\u{ff}\u{1F600}")), "from 0 None"),
        (CacheWatch { shard: Some(ShardIndex(9)), ..watch_of(Some("k"), None) }, "from 0 None"),
    ];
    let mut last = None;
    for (watch, expected) in table {
        let (word, stream) = pair.watch(&rights(), watch);
        assert_eq!(word, expected);
        last = stream.or(last);
    }
    let (word, of_long) = pair.watch(&rights(), watch_of(Some(&long[1..]), None));
    assert_eq!(word, "from 0 None");
    let writer = pair.authed(&rights());
    pair.write(writer, &put(1, &long[1..], b"v"));
    pair.run(MS * 200);
    let told = pair.events(of_long.unwrap());
    assert_eq!(told, [format!("{}=v@0", &long[1..])]);
    assert!(last.is_some());
}

#[test]
fn watches_of_a_connection_are_bounded_and_one_that_ends_makes_room() {
    let limits = CoreLimits { subscriptions_per_connection: 3, ..CoreLimits::default() };
    let mut pair = Pair::new(limits, true);
    let mut streams = Vec::new();
    for number in 0..3 {
        let (word, stream) = pair.watch(&rights(), watch_of(Some(&format!("k{number}")), None));
        assert_eq!(word, "from 0 None");
        streams.extend(stream);
    }
    assert_eq!(pair.watch(&rights(), watch_of(Some("k"), None)).0, "LimitExceeded");
    pair.quic.stop_sending(pair.conn, streams[1], VarInt::from_u32(0));
    pair.run(MS * 20);
    assert_eq!(pair.watch(&rights(), watch_of(Some("k"), None)).0, "from 0 None");
    let code = VarInt::from_u32(0);
    pair.quic.close(pair.now, pair.conn, code, Bytes::new());
    pair.run(MS * 20);
    pair.assert_nothing_held();
}

#[test]
fn the_keys_that_a_connection_watches_have_a_bound_in_bytes() {
    let mut pair = Pair::new(CoreLimits::default(), true);
    let key = "k".repeat(65_535);
    let mut words = Vec::new();
    while words.last().is_none_or(|word| word == "from 0 None") {
        assert!(words.len() < 200, "no bound");
        words.push(pair.watch(&rights(), watch_of(Some(&key), None)).0);
    }
    assert_eq!((words.len(), words.last().map(String::as_str)), (65, Some("LimitExceeded")));
    assert_eq!(pair.watch(&rights(), watch_of(Some("k"), None)).0, "from 0 None", "a short one has room");
}

#[test]
fn a_client_that_does_not_read_a_watch_is_told_where_it_lags_and_holds_nothing_up() {
    let mut pair = Pair::new(CoreLimits::default(), true);
    pair.quic.set_receive_window(pair.conn, 64 << 20);
    let writer = pair.authed(&rights());
    let one = key(0);
    pair.deaf = true;
    assert_eq!(pair.watch(&rights(), watch_of(Some(&one), None)).0, "from 0 None");
    let value = vec![b'v'; 100_000];
    // Far more than the stream, the queues and what a shard in memory keeps can hold.
    for request in 0..300 {
        pair.write(writer, &put(request, &one, &value));
        pair.run(MS * 20);
        assert!(pair.next(writer).is_some(), "the writer waits for nobody");
    }
    let bytes: usize = pair.core.watch_bytes();
    assert!(bytes < 2 << 20, "{bytes} bytes");
    let events = pair.hear();
    pair.run(MS * 1_000);
    assert!(pair.next(events[0]).is_some(), "the hello");
    let told = pair.events(events[0]);
    let last = told.last().expect("something came");
    let missed: u64 = last.strip_prefix("lagged ").unwrap_or_else(|| panic!("{last}")).parse().unwrap();
    assert_eq!(missed, told.len() as u64 - 1, "everything before it came");
    assert!(pair.is_ended(events[0]));
    pair.assert_nothing_held();
    let again = CacheWatch { from_offset: Some(Offset(missed)), ..watch_of(Some(&one), None) };
    assert_eq!(pair.watch(&rights(), again).0, "from 300 anew None");
}

#[test]
fn a_watch_ends_with_the_last_token_of_who_watches_and_says_where_to_go_on() {
    let mut pair = Pair::new(CoreLimits::default(), true);
    let short = Credentials::get().token_for("short", UNIX_S + 2, &["cache.read"]);
    let writer = pair.authed(&rights());
    let one = key(0);
    let (word, stream) = pair.watch(&short, watch_of(Some(&one), None));
    assert_eq!(word, "from 0 None");
    pair.write(writer, &put(1, &one, b"v"));
    assert_eq!(pair.events(stream.unwrap()), [format!("{one}=v@0")]);
    pair.run(Duration::from_secs(8));
    pair.write(writer, &put(2, &one, b"w"));
    assert_eq!(pair.events(stream.unwrap()), ["moved Some(Offset(1))"]);
    assert!(pair.is_ended(stream.unwrap()));
    pair.assert_nothing_held();
    let other = CacheWatch { from_offset: Some(Offset(1)), ..watch_of(Some(&one), None) };
    let (word, _) = pair.watch(&rights(), other);
    assert_eq!(word, "from 2 anew None", "in memory nothing was kept meanwhile, and that is told");
}

#[test]
fn a_deleted_cache_ends_its_watches_with_an_error_and_one_that_moves_with_where_to_go_on() {
    for (deleted, last) in [(true, "NotFound"), (false, "moved Some(Offset(1))")] {
        let mut pair = Pair::new(CoreLimits::default(), true);
        let writer = pair.authed(&rights());
        let one = key(0);
        let (_, stream) = pair.watch(&rights(), watch_of(Some(&one), None));
        pair.write(writer, &put(1, &one, b"v"));
        let mut routes = Pair::streams().to_vec();
        if deleted {
            routes.pop();
        } else {
            let owner = Owner::Here { core: CoreId(0), generation: Generation(2) };
            routes[1] = Arc::new(StreamRoute { owners: vec![owner.clone(), owner], ..(*routes[1]).clone() });
        }
        let routes = Arc::new(Routes::new(2, routes, [Arc::from(TENANT)]));
        pair.core.handle_admin(pair.now, ToCore::Routes(routes));
        pair.run(MS * 20);
        assert_eq!(pair.events(stream.unwrap()), [format!("{one}=v@0"), last.to_owned()]);
        assert!(pair.is_ended(stream.unwrap()));
        pair.assert_nothing_held();
        let again = CacheWatch { from_offset: Some(Offset(1)), ..watch_of(Some(&one), None) };
        let word = pair.watch(&rights(), again).0;
        match deleted {
            true => assert_eq!(word, "NotFound"),
            false => {
                assert!(word.ends_with(" anew None"), "another life, whose changes are not those: {word}")
            }
        }
    }
}

#[test]
fn a_watch_of_a_shard_that_is_not_served_in_time_is_refused() {
    let mut pair = Pair::new(CoreLimits::default(), true);
    let stream = pair.authed(&rights());
    super::caches::without_log(&mut pair);
    pair.send(stream, &Message::CacheWatch(watch_of(Some("k"), None)));
    pair.run(MS * 1_000);
    assert!(pair.next(stream).is_none(), "it may be served soon");
    pair.run(MS * 1_500);
    assert_eq!(pair.error(stream).0, ErrorCode::ShardUnavailable);
    pair.assert_nothing_held();
}

#[test]
fn a_client_that_allows_no_more_event_streams_is_told_so() {
    let mut pair = Pair::new(CoreLimits::default(), true);
    pair.deaf = true;
    let mut words = Vec::new();
    let stream = pair.authed(&rights());
    for _ in 0..1_025 {
        pair.send(stream, &Message::CacheWatch(watch_of(Some("k"), None)));
        while let Some(frame) = pair.next(stream) {
            words.push(match Message::decode(&frame.payload).unwrap() {
                Message::CacheWatchStarted(_) => "started",
                Message::Error(error) if error.code == Some(ErrorCode::LimitExceeded) => "limit",
                other => panic!("{other:?}"),
            });
        }
    }
    assert_eq!(words.iter().filter(|word| **word == "started").count(), 1_024);
    assert_eq!((words.len(), words.last()), (1_025, Some(&"limit")));
}
