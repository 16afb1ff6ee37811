//! The subscriptions of all cores, for an operator who asks one of them. Scope: functions of a core.
//! Invariants: each core is asked once and answers once; how many such requests are under way is bounded, and so is what each
//! answers; a subscription is shown only to whoever may inspect its stream.
//! Not here: what an operator may ask (`session::inspect`).

use std::sync::Arc;

use felix_runtime::clock::Tick;
use felix_runtime::quic::{ConnKey, StreamId};
use felix_wire::client::inspect::{SubscriptionCursor, SubscriptionView};
use felix_wire::client::{Message, SubscriptionsListInfo};
use felix_wire::id::{CoreId, Offset, RequestId, ShardIndex, SubscriptionId};

use super::core::{Core, Mail};
use super::subscribing::Sub;
use crate::access::Principal;
use crate::projection::stream::subscription::Subscription;
use crate::session::ListAction;
use crate::session::answers::AnswerSlot;
use crate::session::refusal::Refusal;
use crate::snapshot::{SlowSubscriber, StreamName};

/// Requests under way that one core has taken.
const LISTINGS_MAX: usize = 16;

/// Where a subscription is in the order in which they are listed.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ListPlace {
    pub tenant: Arc<str>,
    pub namespace: Arc<str>,
    pub stream: Arc<str>,
    pub shard: ShardIndex,
    pub subscriber: u64,
}

/// Which subscriptions are wanted.
#[derive(Debug)]
pub struct ListQuery {
    pub principal: Arc<Principal>,
    pub tenant: Option<Box<str>>,
    pub namespace: Option<Box<str>>,
    pub stream: Option<Box<str>>,
    pub shard: Option<ShardIndex>,
    pub subject: Option<Box<str>>,
    pub dropping: Option<bool>,
    pub rows_max: usize,
    pub after: Option<ListPlace>,
}

impl ListQuery {
    fn wants_stream(&self, name: &StreamName) -> bool {
        let is = |wanted: &Option<Box<str>>, name: &Arc<str>| {
            wanted.as_ref().is_none_or(|wanted| **wanted == **name)
        };
        let name_of = (&*name.tenant, &*name.namespace, &*name.stream);
        is(&self.tenant, &name.tenant)
            && is(&self.namespace, &name.namespace)
            && is(&self.stream, &name.stream)
            && self.principal.inspects(name_of, false, ()).is_ok()
    }
}

/// A subscription as it is told.
#[derive(Debug)]
pub struct ListRow {
    place: ListPlace,
    id: Option<SubscriptionId>,
    connection: u64,
    peer: Option<String>,
    subject: Arc<str>,
    depth: u64,
    capacity: u64,
    dropped: u64,
    position: Option<Offset>,
    tail: Offset,
    age_ms: u64,
}

/// Between cores.
#[derive(Debug)]
pub enum ListMail {
    Ask { listing: usize, query: Arc<ListQuery> },
    Rows { listing: usize, rows: Vec<ListRow> },
}

/// A request that is not answered.
#[derive(Debug)]
pub struct Listing {
    conn: ConnKey,
    stream: StreamId,
    slot: AnswerSlot,
    request_id: RequestId,
    query: Arc<ListQuery>,
    /// Cores that have not answered.
    unanswered: u16,
    rows: Vec<ListRow>,
}

impl Core {
    /// Asks all cores for their subscriptions.
    pub(super) fn list(&mut self, now: Tick, conn: ConnKey, action: ListAction) {
        let ListAction { stream, slot, request_id, query } = action;
        if self.listings.len() >= LISTINGS_MAX {
            let refusal = Refusal::too_many_asks();
            if let Some(session) = self.sessions.get_mut(&conn) {
                session.answer_list((stream, slot), Err(&refusal));
            }
            return self.touched.push((conn, stream));
        }
        let (query, unanswered, rows) = (Arc::new(query), self.cores, Vec::new());
        let listing = Listing { conn, stream, slot, request_id, query: Arc::clone(&query), unanswered, rows };
        let listing = self.listings.insert(listing);
        let here = self.id;
        for core in (0..self.cores).map(CoreId).filter(|core| *core != here) {
            self.send_list(core, ListMail::Ask { listing, query: Arc::clone(&query) });
        }
        let rows = self.list_rows(now, &query);
        self.take_rows(listing, rows);
    }

    /// A message of another core.
    pub(super) fn handle_list(&mut self, now: Tick, from: CoreId, mail: ListMail) {
        match mail {
            ListMail::Ask { listing, query } => {
                let rows = self.list_rows(now, &query);
                self.send_list(from, ListMail::Rows { listing, rows });
            }
            ListMail::Rows { listing, rows } => self.take_rows(listing, rows),
        }
    }

    /// The first subscriptions of this core that are wanted, one more than fits the answer.
    fn list_rows(&self, now: Tick, query: &ListQuery) -> Vec<ListRow> {
        let wanted = |row: &ListRow| {
            query.shard.is_none_or(|shard| shard == row.place.shard)
                && query.subject.as_ref().is_none_or(|subject| **subject == *row.subject)
                && query.dropping.is_none_or(|dropping| dropping == (row.dropped > 0))
                && query.after.as_ref().is_none_or(|after| row.place > *after)
        };
        let rows = self.subs.iter().filter_map(|(_, sub)| self.list_row(now, sub, query));
        let mut rows: Vec<ListRow> = rows.filter(wanted).collect();
        rows.sort_unstable_by(|a, b| a.place.cmp(&b.place));
        rows.truncate(query.rows_max + 1);
        rows
    }

    fn list_row(&self, now: Tick, sub: &Sub, query: &ListQuery) -> Option<ListRow> {
        let name = &self.routes.route(sub.shard.stream).filter(|route| query.wants_stream(&route.name))?.name;
        let (connection, subject) = self.sessions.get(&sub.conn)?.names(sub.identity);
        let cursor = sub.live.as_ref().map(|live| &live.cursor);
        let age = now.saturating_since(sub.since);
        Some(ListRow {
            place: ListPlace {
                tenant: Arc::clone(&name.tenant),
                namespace: Arc::clone(&name.namespace),
                stream: Arc::clone(&name.stream),
                shard: sub.shard.shard,
                // Tokens are counted by each core.
                subscriber: (u64::from(self.id.0) << 48) | (sub.token.0 >> 20),
            },
            id: sub.live.as_ref().map(|live| live.id),
            connection,
            peer: self.quic.remote_address(sub.conn).map(|address| address.to_string()),
            subject,
            depth: cursor.map_or(0, |cursor| cursor.depth() as u64),
            capacity: sub.queue.frames_max as u64,
            dropped: cursor.map_or(0, Subscription::dropped),
            position: cursor.map(Subscription::undelivered),
            tail: self.feed_end(sub),
            age_ms: u64::try_from(age.as_millis()).unwrap_or(u64::MAX),
        })
    }

    fn send_list(&mut self, to: CoreId, mail: ListMail) {
        if let Some(outbox) = self.outbox.get_mut(usize::from(to.0)) {
            outbox.push_back(Mail::List(mail));
        }
    }

    fn take_rows(&mut self, listing: usize, rows: Vec<ListRow>) {
        let Some(entry) = self.listings.get_mut(listing) else { return };
        entry.rows.extend(rows);
        entry.rows.sort_unstable_by(|a, b| a.place.cmp(&b.place));
        entry.rows.truncate(entry.query.rows_max + 1);
        entry.unanswered -= 1;
        if entry.unanswered > 0 {
            return;
        }
        let Listing { conn, stream, slot, request_id, query, mut rows, .. } = self.listings.remove(listing);
        let more = rows.len() > query.rows_max;
        rows.truncate(query.rows_max);
        let policy = match self.limits.slow_subscriber {
            SlowSubscriber::Block => "block",
            SlowSubscriber::DropNew => "drop_new",
            SlowSubscriber::DropOld => "drop_old",
        };
        let info = SubscriptionsListInfo {
            node_id: "".into(),
            subscriptions: rows.iter().map(|row| row.view(policy)).collect(),
            next_cursor: rows.last().filter(|_| more).map(|row| row.place.cursor()),
            request_id,
        };
        if let Some(session) = self.sessions.get_mut(&conn) {
            session.answer_list((stream, slot), Ok(&Message::SubscriptionsListInfo(Box::new(info))));
            self.touched.push((conn, stream));
        }
    }
}

impl ListPlace {
    fn cursor(&self) -> SubscriptionCursor<'_> {
        SubscriptionCursor {
            tenant_id: (&*self.tenant).into(),
            namespace: (&*self.namespace).into(),
            stream: (&*self.stream).into(),
            shard: self.shard,
            subscriber_id: self.subscriber,
        }
    }
}

impl ListRow {
    fn view<'v>(&'v self, policy: &'v str) -> SubscriptionView<'v> {
        SubscriptionView {
            tenant_id: (&*self.place.tenant).into(),
            namespace: (&*self.place.namespace).into(),
            stream: (&*self.place.stream).into(),
            shard: self.place.shard,
            subscriber_id: self.place.subscriber,
            subscription_id: self.id,
            connection: Some(self.connection),
            peer: self.peer.as_deref().map(Into::into),
            principal: Some((&*self.subject).into()),
            policy: policy.into(),
            depth: self.depth,
            capacity: self.capacity,
            dropped: self.dropped,
            position: self.position,
            tail: self.tail,
            age_ms: self.age_ms,
        }
    }
}
