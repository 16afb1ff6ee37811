//! What a core holds, for tests and the simulator: everything here is zero once the work is done. Scope: functions of a
//! core.

use super::core::Core;
use super::counters::Counter;
use super::lane::Lane;

impl Core {
    /// One of the core's numbers.
    pub fn count(&self, counter: Counter) -> u64 {
        self.counters.get(counter)
    }

    /// Bytes that watches hold, at their shards and on their way to their streams.
    pub fn watch_bytes(&self) -> usize {
        self.caches.values().map(|cache| cache.watches().1).sum::<usize>() + self.watches.held_bytes()
    }

    /// Whether a log of this core has failed and takes no writes until the next start.
    pub fn has_stopped_log(&self) -> bool {
        self.store.as_ref().is_some_and(|store| store.engines().any(|engine| engine.stopped_logs() > 0))
    }

    /// What is unfinished, by name. With `connections` also what an idle connection holds.
    pub fn held(&self, connections: bool) -> Vec<(&'static str, u64)> {
        let rings: usize = self.shards.values().map(|s| s.ring_bytes()).sum();
        let sessions = || self.sessions.values();
        let mut held = vec![
            ("jobs", self.jobs.len()),
            ("asks", self.asks.len() + self.asks_back.len()),
            ("ask bytes", self.asks_bytes),
            ("groups at work", self.groups.values().filter(|groups| !groups.is_idle()).count()),
            ("caches at work", self.caches.values().filter(|cache| !cache.is_idle()).count()),
            ("parked", self.lanes.values().map(Lane::queued).sum()),
            ("credit", self.credits.iter().map(|c| c.outstanding() as usize).sum()),
            ("credit bytes", self.credits.iter().map(|c| c.outstanding_bytes() as usize).sum()),
            ("starved", self.shards.values().filter(|s| s.starved_bytes().is_some()).count()),
            ("outbox", usize::from(self.has_mail())),
            ("rings not counted", self.rings_bytes.abs_diff(rings)),
            ("partial bytes", sessions().map(|s| s.partial_bytes()).sum()),
            ("unsettled sessions", sessions().filter(|s| !s.is_settled()).count()),
        ];
        if connections {
            held.extend([
                ("sessions", self.sessions.len()),
                ("subscriptions", self.subs.len()),
                ("watches", self.watches.len()),
                ("watches of caches", self.caches.values().map(|cache| cache.watches().0).sum()),
                ("feeds", self.feeds.len()),
                ("event streams", self.event_streams.len()),
                ("links", self.shards.values().map(|s| s.links()).sum()),
                ("windows", self.windows_bytes),
                ("connections", self.quic.held_count()),
            ]);
        }
        held.into_iter().map(|(name, n)| (name, n as u64)).collect()
    }
}
