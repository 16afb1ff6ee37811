//! Flag bits of a frame header: they choose the binary layout and its modifiers (client-protocol 3).
//! Owns: the bits and their names. Not here: which peer may be sent which bit (the session negotiates that).

use std::fmt;
use std::ops::BitOr;

use serde::{Deserialize, Serialize};

/// A set of flag bits. Zero means the payload is one JSON message.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Flags(pub u16);

impl Flags {
    /// No bit: a JSON message.
    pub const JSON: Self = Self(0);
    /// Client to broker: binary publish (10.2).
    pub const PUBLISH_BATCH: Self = Self(0x0001);
    /// Broker to client: event batch naming its subscription (11.4).
    pub const EVENT_BATCH: Self = Self(0x0002);
    /// Broker to client: event batch without a subscription id; the form a broker sends.
    pub const EVENT_BATCH_SHARED: Self = Self(0x0004);
    /// Modifies `PUBLISH_BATCH`: request id and ack mode in front.
    pub const PUBLISH_ACKED: Self = Self(0x0008);
    /// Broker to client: binary answer to an acked publish (10.3).
    pub const PUBLISH_ACK: Self = Self(0x0010);
    /// Modifies an event batch: base offset.
    pub const EVENT_OFFSETS: Self = Self(0x0020);
    /// Modifies `PUBLISH_BATCH`: routing key.
    pub const PUBLISH_KEYED: Self = Self(0x0040);
    /// Modifies `PUBLISH_ACK`: owner of the shard it was forwarded to.
    pub const ACK_OWNER: Self = Self(0x0080);
    /// Modifies `PUBLISH_BATCH` with `PUBLISH_ACKED`: producer id and sequence.
    pub const PUBLISH_IDEMPOTENT: Self = Self(0x0100);
    /// Modifies a failed `PUBLISH_ACK`: error code and retry class.
    pub const ACK_CODE: Self = Self(0x0200);
    /// Modifies `ACK_CODE`: reason and wait.
    pub const ACK_DETAIL: Self = Self(0x0400);
    /// Modifies `EVENT_OFFSETS`: offsets without events just before the batch.
    pub const EVENT_SKIPPED: Self = Self(0x0800);
    /// Modifies a successful `PUBLISH_ACK`: log offset; also permits `offset` in a JSON `publish_ok`.
    pub const ACK_OFFSET: Self = Self(0x1000);
    /// Modifies an event batch: publisher.
    pub const EVENT_PUBLISHER: Self = Self(0x2000);
    /// Modifies an event batch: append time per event.
    pub const EVENT_TIMESTAMPS: Self = Self(0x4000);

    /// Private: a message in its binary form. Alone, and only between peers that both set `Features::BINARY_MESSAGES`;
    /// the protocol leaves the bit undefined and every other peer refuses it.
    pub const BINARY_MESSAGE: Self = Self(0x8000);

    /// Every defined bit. A frame with another one is refused.
    pub const KNOWN: Self = Self(0x7fff);
    /// What a peer that announced nothing understands.
    pub const UNANNOUNCED: Self = Self(0x0007);

    /// The bare bits.
    #[must_use]
    pub const fn bits(self) -> u16 {
        self.0
    }

    /// True when every bit of `other` is set here.
    #[must_use]
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// True when a bit of `other` is set here.
    #[must_use]
    pub const fn intersects(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }

    /// Bits of either set.
    #[must_use]
    pub const fn union(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Bits of both sets.
    #[must_use]
    pub const fn intersection(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }

    /// The bits no layout defines; empty for a frame that may be decoded.
    #[must_use]
    pub const fn unknown(self) -> Self {
        Self(self.0 & !Self::KNOWN.0)
    }
}

impl BitOr for Flags {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        self.union(other)
    }
}

impl fmt::Display for Flags {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#06x}", self.0)
    }
}
