//! Requests about the records of the durable shards of a core: commits, state, conditional publishes, pages, times. Scope:
//! functions of a core.
//! Invariants: a request is carried out by a shard of the generation that it names, or comes back.
//! Not here: what a request does (`shard::asked`), who asks (`turn::asking`).

use felix_logstore::record::Batch;
use felix_runtime::clock::Tick;
use felix_wire::id::Generation;

use super::core::Core;
use crate::shard::ask::{Ask, Asker, StreamAsk};
use crate::shard::mail::{FromShard, PageLoss, ShardOutput};
use crate::snapshot::ShardId;
use crate::store::{LogAt, PageFor};

impl Core {
    /// A request about the records of a shard of this core.
    pub(super) fn handle_stream_ask(
        &mut self,
        now: Tick,
        asker: Asker,
        (id, generation): (ShardId, Generation),
        ask: Box<StreamAsk>,
    ) {
        let served = self.shards.get(&id).is_some_and(|shard| shard.generation() == generation);
        if !served {
            let what = ShardOutput::AskBack { token: asker.token, ask: Ask::Stream(ask) };
            return self.shard_out.push((asker.core, FromShard { shard: id, generation, what }));
        }
        self.lives += 1;
        let life = self.lives;
        self.with_shard(now, id, |shard, cx| shard.ask(asker, ask, life, cx));
    }

    /// A page that such a request needs was read, or cannot be.
    pub(super) fn stream_page(
        &mut self,
        now: Tick,
        at: LogAt,
        page: PageFor,
        read: Result<&[Batch], PageLoss>,
    ) {
        self.with_logged(now, at, |shard, cx| shard.asked_page(page, read, cx));
    }
}
