//! Feature bits: two 32-bit words exchanged in `auth` and `auth_ok` (client-protocol 4.3).
//! Owns: the bits, and the rule that the second word counts only with the marker `EXTENDED` in the first.
//! Not here: what a broker serves, and to whom (the session decides).

use std::ops::BitOr;

/// A set of feature bits, both words.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Features {
    /// First word (`client_features`, `server_features`).
    pub lo: u32,
    /// Second word (`client_features_hi`, `server_features_hi`).
    pub hi: u32,
}

macro_rules! feature_bits {
    ($($(#[$doc:meta])* $name:ident = ($lo:literal, $hi:literal);)*) => {$(
        $(#[$doc])*
        pub const $name: Self = Self { lo: $lo, hi: $hi };
    )*};
}

impl Features {
    feature_bits! {
        /// No bit.
        NONE = (0, 0);
        /// Serves `topology`.
        TOPOLOGY = (0x0000_0001, 0);
        /// Reads `not_leader`.
        REDIRECT = (0x0000_0002, 0);
        /// Serves `cache_delete`.
        CACHE_DELETE = (0x0000_0004, 0);
        /// Serves `group_poll`, `group_ack`, `group_nack`.
        CONSUMER_GROUP = (0x0000_0008, 0);
        /// Serves `group_dead_letters`, `group_discard`, `group_redrive`.
        GROUP_DEAD_LETTERS = (0x0000_0010, 0);
        /// Serves `stream_shards`.
        STREAM_SHARDS = (0x0000_0020, 0);
        /// Serves `cache_watch`.
        CACHE_WATCH = (0x0000_0040, 0);
        /// Serves `retained` on `cache_watch`.
        CACHE_WATCH_RETAINED = (0x0000_0080, 0);
        /// Serves `counter_add`, `counter_get`.
        COUNTERS = (0x0000_0100, 0);
        /// Serves `producer_init` and idempotent publishes.
        IDEMPOTENT_PRODUCER = (0x0000_0200, 0);
        /// Serves `cache_shards`.
        CACHE_SHARDS = (0x0000_0400, 0);
        /// Reads `code`, `retry`, `detail` on errors.
        ERROR_CODES = (0x0000_0800, 0);
        /// Reads `shard_moved`.
        SHARD_MOVED = (0x0000_1000, 0);
        /// Answers unknown requests `unsupported`; reads that answer.
        UNSUPPORTED = (0x0000_2000, 0);
        /// Reads the refusal reason `sequence_reused`.
        SEQUENCE_REUSED = (0x0000_4000, 0);
        /// Acks come in order under a granted `publish_window`.
        PUBLISH_PIPELINE = (0x0000_8000, 0);
        /// Serves `commit`, `state_get`.
        ATOMIC_COMMIT = (0x0001_0000, 0);
        /// The publish window is per stream, not per connection.
        STREAM_PUBLISH_WINDOW = (0x0002_0000, 0);
        /// Serves `shard_owners`.
        SHARD_OWNERS = (0x0004_0000, 0);
        /// Wants every ack after the write, with its offset.
        ACK_ON_COMMIT = (0x0008_0000, 0);
        /// Serves `consumer` and `reclaim` on `group_poll`.
        GROUP_CONSUMER = (0x0010_0000, 0);
        /// Reads `subscription_lagged`.
        SUBSCRIPTION_LAGGED = (0x0020_0000, 0);
        /// Reads `skipped_before` on group records.
        GROUP_SKIPPED = (0x0040_0000, 0);
        /// Reads `publisher` on group records.
        GROUP_PUBLISHER = (0x0080_0000, 0);
        /// Serves `group_seek`, `group_describe`, `group_delete`.
        GROUP_ADMIN = (0x0100_0000, 0);
        /// Serves `cache_put_if`, `cache_delete_if`; reads `version` on `cache_value`.
        CACHE_CONDITIONAL = (0x0200_0000, 0);
        /// Serves `offset_for_time`; reads `timestamp_micros` on group records.
        RECORD_TIMESTAMPS = (0x0400_0000, 0);
        /// Serves `group_extend`, `group_dead_letter`, claim control on nack and poll.
        GROUP_CLAIM_CONTROL = (0x0800_0000, 0);
        /// Serves `publish_if` and `expected_offset` on `commit`.
        PUBLISH_CONDITIONAL = (0x1000_0000, 0);
        /// Serves `stream_read`.
        STREAM_READ = (0x2000_0000, 0);
        /// Serves `queue_capacity` on `subscribe`.
        SUBSCRIBE_QUEUE = (0x4000_0000, 0);
        /// Marker: the second word is present and is read.
        EXTENDED = (0x8000_0000, 0);
        /// Serves `shard_inspect`, `subscriptions_list`.
        INSPECT = (0, 0x0000_0001);
        /// Reads `stream_deleted`.
        STREAM_DELETED = (0, 0x0000_0002);
        /// Serves `publish_width` and checks keyed publishes against it.
        PUBLISH_WIDTH = (0, 0x0000_0004);
        /// Serves `shard` on publish, commit and state requests.
        EXPLICIT_SHARD = (0, 0x0000_0008);
        /// Private: `cores` and `core` in `auth_ok`, `core` in `shard_owners_view` entries.
        CORE_HINTS = (0, 0x0100_0000);
        /// Private: events of in-memory streams carry offsets, `subscribed` carries `boot`, `stream_shards_view`
        /// carries `durable`.
        POSITIONS = (0, 0x0200_0000);
        /// Private: the requests of one stream are answered in the order they were read, so that many may be unanswered.
        ORDERED_ANSWERS = (0, 0x0400_0000);
        /// Private: serves `producer_id` and `sequence` on `counter_add` and `commit`.
        NUMBERED_WRITES = (0, 0x0800_0000);
        /// Private: reads frames with the flags `Flags::BINARY_MESSAGE`, and answers a request in the form it came in.
        BINARY_MESSAGES = (0, 0x1000_0000);
        /// Private: serves `group_join`, `group_heartbeat`, `group_leave`, `group_members`, and `lease` on polls and
        /// settlements.
        GROUP_LEASES = (0, 0x2000_0000);
        /// Private: serves `count` on `group_ack`.
        GROUP_RANGES = (0, 0x4000_0000);
    }

    /// Every public bit, without the marker.
    pub const KNOWN: Self = Self { lo: 0x7fff_ffff, hi: 0x0000_000f };

    /// The set a peer announced. The second word counts only when the first has the marker; absent words are
    /// empty. The marker itself is not part of the result.
    #[must_use]
    pub const fn announced(lo: Option<u32>, hi: Option<u32>) -> Self {
        let lo = match lo {
            Some(lo) => lo,
            None => 0,
        };
        let hi = match hi {
            Some(hi) if lo & Self::EXTENDED.lo != 0 => hi,
            _ => 0,
        };
        Self { lo: lo & !Self::EXTENDED.lo, hi }
    }

    /// The two words to write for this set to a peer: the marker is set exactly when the second word is
    /// written, and that only when it is not zero and `peer_reads_hi`.
    #[must_use]
    pub const fn words(self, peer_reads_hi: bool) -> (u32, Option<u32>) {
        let lo = self.lo & !Self::EXTENDED.lo;
        if self.hi != 0 && peer_reads_hi { (lo | Self::EXTENDED.lo, Some(self.hi)) } else { (lo, None) }
    }

    /// True when every bit of `other` is set here.
    #[must_use]
    pub const fn contains(self, other: Self) -> bool {
        self.lo & other.lo == other.lo && self.hi & other.hi == other.hi
    }

    /// Bits of either set.
    #[must_use]
    pub const fn union(self, other: Self) -> Self {
        Self { lo: self.lo | other.lo, hi: self.hi | other.hi }
    }

    /// Bits of both sets.
    #[must_use]
    pub const fn intersection(self, other: Self) -> Self {
        Self { lo: self.lo & other.lo, hi: self.hi & other.hi }
    }

    /// Bits of this set that `other` lacks.
    #[must_use]
    pub const fn without(self, other: Self) -> Self {
        Self { lo: self.lo & !other.lo, hi: self.hi & !other.hi }
    }
}

impl BitOr for Features {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        self.union(other)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_second_word_counts_only_with_the_marker() {
        let with = Features::announced(Some(0x8000_0001), Some(0xf));
        assert_eq!(with, Features { lo: 1, hi: 0xf });
        assert_eq!(Features::announced(Some(1), Some(0xf)), Features::TOPOLOGY);
        assert_eq!(Features::announced(None, Some(0xf)), Features::NONE);
    }

    #[test]
    fn the_marker_is_written_exactly_with_the_second_word() {
        let set = Features::TOPOLOGY | Features::CORE_HINTS;
        assert_eq!(set.words(true), (0x8000_0001, Some(0x0100_0000)));
        assert_eq!(set.words(false), (1, None));
        assert_eq!(Features::TOPOLOGY.words(true), (1, None));
    }
}
