//! Watches whose event stream was reset. Scope: functions of a simulated client.
//! Invariants: a stream that was reset before its hello was read costs one watch that has no stream, since nobody can say which it
//! was of; every such watch asks again.
//! Not here: what a watch does then (`watcher`).

use felix_runtime::quic::ConnKey;

use super::{Client, REDIAL, Role, Surroundings, Wire, WireKey};

impl Client {
    /// The watch whose events come on a stream.
    pub(super) fn watcher_of(&self, key: WireKey) -> Option<usize> {
        let Role::Events(Some(id)) = self.wires.get(&key)?.role else { return None };
        self.watchers.iter().position(|watcher| watcher.is_called(id))
    }

    /// Whether a stream is that of a watch, or may be.
    pub(super) fn is_of_watch(&self, key: WireKey) -> bool {
        self.wires.get(&key).is_none_or(|wire| wire.role == Role::Events(None))
            || self.watcher_of(key).is_some()
    }

    /// A watch of which nothing but the stream was known is any that is live without one, now or when it is answered.
    pub(super) fn watch_reset(&mut self, key: WireKey, around: &mut Surroundings<'_>) {
        let known = self.watcher_of(key);
        self.readable.remove(&key);
        self.wires.remove(&key);
        match known {
            Some(at) => self.watchers[at].lost(around.now + REDIAL, around),
            None => {
                self.resets_unread += 1;
                self.lose_streamless(key.0, around);
            }
        }
    }

    pub(super) fn lose_streamless(&mut self, conn: ConnKey, around: &mut Surroundings<'_>) {
        for watcher in self.watchers.iter_mut().filter(|watcher| watcher.is_of(conn)) {
            let comes = |wire: &Wire| wire.role == Role::Events(watcher.id());
            if self.resets_unread > 0 && watcher.id().is_some() && !self.wires.values().any(comes) {
                self.resets_unread -= 1;
                watcher.lost(around.now + REDIAL, around);
            }
        }
    }
}
