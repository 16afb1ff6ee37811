//! `cache_watch` (client-protocol 13). Scope: functions of a session.
//! Invariants: a watch is handed on only when its caller may read every key that it could ever tell of.
//! Not here: the watch itself (`shard::cache::watch`), its event stream (`turn::watching`).

use felix_wire::client::CacheWatch;
use felix_wire::control::Action as Right;
use felix_wire::features::Features;
use felix_wire::id::ShardIndex;

use super::refusal::Refusal;
use super::stream::Stream;
use super::{Action, Cx, WatchAction, not_leader, write_error};
use crate::access::{Granted, Principal};
use crate::projection::cache::interest::Interest;
use crate::projection::cache::watch::WatchFrom;
use crate::projection::record::KEY_BYTES_MAX;
use crate::route::{Place, Placing, RouteError, place};
use crate::snapshot::StreamRoute;

/// Hands a watch on, or refuses it.
pub(super) fn watch_request(
    stream: &mut Stream,
    (principal, identity): (&Principal, usize),
    m: &CacheWatch<'_>,
    cx: &mut Cx<'_>,
) {
    let (interest, from) = match understood(m) {
        Ok(understood) => understood,
        Err(refusal) => return write_error(stream, &refusal),
    };
    let name = (&*m.tenant_id, &*m.namespace, &*m.cache);
    let granted = match &interest {
        Interest::Key(key) => principal.cache_key(Right::CacheRead, name, key, ()),
        Interest::Prefix(prefix) => principal.cache_prefix(Right::CacheRead, name, prefix, ()),
    };
    let Ok(granted) = granted else { return write_error(stream, &Refusal::forbidden()) };
    let Some(route) = cx.routes.cache(name, cx.scratch) else {
        return write_error(stream, &Refusal::no_cache(cx.routes));
    };
    let place = match placed(route, &interest, m.shard) {
        Ok(place) => granted.map(|()| place),
        Err(Misplaced::Refused(refusal)) => return write_error(stream, &refusal),
        Err(Misplaced::Route(RouteError::OtherNode { node, addr, generation }))
            if stream.features.contains(Features::REDIRECT) =>
        {
            not_leader(node, addr, generation).encode_frame(stream.answers());
            return;
        }
        Err(Misplaced::Route(RouteError::NoSuchShard { .. })) => {
            return write_error(stream, &Refusal::invalid("the cache has no such shard"));
        }
        Err(Misplaced::Route(error)) => return write_error(stream, &Refusal::from_route(&error)),
    };
    hand_on(stream, place, (interest, from, identity), cx);
}

fn hand_on(
    stream: &mut Stream,
    place: Granted<Place>,
    (interest, from, identity): (Interest, WatchFrom, usize),
    cx: &mut Cx<'_>,
) {
    stream.awaiting += 1;
    let slot = stream.asked.open();
    cx.actions.push(Action::Watch(Box::new(WatchAction {
        stream: stream.id,
        slot,
        place,
        interest,
        from,
        identity,
        reads_moved: stream.features.contains(Features::SHARD_MOVED),
        reads_codes: stream.features.contains(Features::ERROR_CODES),
    })));
}

/// What the request says, whatever there is.
fn understood(m: &CacheWatch<'_>) -> Result<(Interest, WatchFrom), Refusal> {
    let interest = match (&m.key, &m.prefix) {
        (Some(key), None) => Interest::Key(key.as_bytes().into()),
        (None, Some(prefix)) => Interest::Prefix(prefix.as_bytes().into()),
        (Some(_), Some(_)) | (None, None) => {
            return Err(Refusal::invalid("a watch is of a key or of a prefix"));
        }
    };
    if interest.bytes().len() > KEY_BYTES_MAX {
        return Err(Refusal::invalid("the key or prefix is longer than 65535 bytes"));
    }
    let from = match (m.from_offset, m.retained) {
        (Some(_), true) => {
            return Err(Refusal::invalid("a watch begins at an offset or with the current values, not both"));
        }
        (Some(offset), false) => WatchFrom::Offset(offset),
        (None, true) => WatchFrom::Retained,
        (None, false) => WatchFrom::Now,
    };
    Ok((interest, from))
}

enum Misplaced<'r> {
    Refused(Refusal),
    Route(RouteError<'r>),
}

/// A key is on its shard, whatever the request says; the keys of a prefix are on all.
fn placed<'r>(
    route: &'r StreamRoute,
    interest: &Interest,
    shard: Option<ShardIndex>,
) -> Result<Place, Misplaced<'r>> {
    let by = match (interest, shard) {
        (Interest::Key(key), _) => Placing::Key { key: Some(key), declared: None },
        (Interest::Prefix(_), Some(shard)) => Placing::Shard(shard),
        (Interest::Prefix(_), None) if route.shards() > 1 => {
            let refusal = Refusal::invalid("the keys of a prefix are on all shards: a watch has to name one");
            return Err(Misplaced::Refused(refusal));
        }
        (Interest::Prefix(_), None) => Placing::Shard(ShardIndex(0)),
    };
    place(route, by).map_err(Misplaced::Route)
}
