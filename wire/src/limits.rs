//! Every bound of the client protocol, each with its reason.
//! Owns: the numbers. The decoders enforce those that protect memory; the session enforces the rest, because only
//! it can answer with a coded error.

/// Largest payload of one frame, bytes. The 0.6.2 client reads no more (client-protocol 2).
pub const FRAME_PAYLOAD_MAX: u32 = 16 * 1024 * 1024;

/// Largest payload on a stream that has not authenticated, bytes: an `auth` needs a few KiB, and a stranger
/// must not be able to make us hold more (client-protocol 2).
pub const PRE_AUTH_PAYLOAD_MAX: u32 = 64 * 1024;

/// What a reader allocates for a frame before the bytes have arrived, at most. Above it, memory follows what
/// was received (at most twice that), so a header alone costs its sender more than it costs us.
pub const FRAME_TRUST_BYTES: usize = 64 * 1024;

/// Tenant, namespace, stream, node id, address: bytes on the wire, given by their u16 length.
pub const NAME_LEN_MAX: usize = u16::MAX as usize;

/// Routing key of a binary publish, bytes, given by its u16 length.
pub const KEY_LEN_MAX: usize = u16::MAX as usize;

/// Records of one publish batch that a broker takes: a log batch counts its records in 16 bits plus one, and
/// a frame of nothing but empty records would otherwise hold four million. More is `limit_exceeded`.
pub const BATCH_RECORDS_MAX: u32 = 65_536;

/// Bytes before the record run that an event frame may need: subscription id, base offset, skipped, publisher
/// with its length byte, count.
pub const EVENT_HEAD_MAX: usize = 8 + 8 + 8 + 256 + 4;

/// Bytes an event frame adds to one record: append time and length.
pub const EVENT_RECORD_OVERHEAD: usize = 8 + 4;

/// Largest single record, bytes: it must fit alone into one event frame with all its extras
/// (client-protocol 2), else nobody could ever read it. More is `limit_exceeded`.
pub const RECORD_LEN_MAX: usize = FRAME_PAYLOAD_MAX as usize - EVENT_HEAD_MAX - EVENT_RECORD_OVERHEAD;

/// Records of one live event frame. The client queues 256 events and drops what does not fit, so four frames
/// fit (client-protocol 11.4).
pub const LIVE_FRAME_RECORDS_MAX: u32 = 64;

/// Bytes of records in one live event frame; one larger record goes alone. Keeps a subscriber's first byte
/// from waiting behind a long frame.
pub const LIVE_FRAME_BYTES_MAX: usize = 256 * 1024;

/// Records of one event frame with history (below `live_offset` the client never drops, it stops reading).
pub const HISTORY_FRAME_RECORDS_MAX: u32 = 256;

/// Bytes of records in one event frame with history; one larger record goes alone.
pub const HISTORY_FRAME_BYTES_MAX: usize = 1024 * 1024;

/// Publisher name of an event frame, bytes, given by its u8 length.
pub const PUBLISHER_LEN_MAX: usize = u8::MAX as usize;

/// Objects and arrays inside one another in a JSON message. The deepest message of the table needs five; a
/// parser that recurses must not be driven down by a stranger.
pub const JSON_DEPTH_MAX: usize = 32;

/// Records of one `group_poll` answer (client-protocol 14).
pub const GROUP_POLL_RECORDS_MAX: u32 = 1_000;

/// Payload bytes of one `group_poll` or `stream_read` answer (client-protocol 14, 16).
pub const READ_ANSWER_BYTES_MAX: usize = 4 * 1024 * 1024;

/// `consumer` of `group_poll`, bytes, at least 1 (client-protocol 14).
pub const CONSUMER_LEN_MAX: usize = 128;

/// Terms of a member of a consumer group, milliseconds: the shortest, the longest, and the one of a member that names none.
pub const GROUP_TERM_MS_MIN: u64 = 1_000;
pub const GROUP_TERM_MS_MAX: u64 = 600_000;
pub const GROUP_TERM_MS_DEFAULT: u64 = 10_000;

/// Node id, characters (a DNS name).
pub const NODE_ID_LEN_MAX: usize = 253;

const _: () = assert!(PRE_AUTH_PAYLOAD_MAX < FRAME_PAYLOAD_MAX, "authentication must widen the limit");
const _: () = assert!(LIVE_FRAME_RECORDS_MAX <= 256, "a live frame must fit the client's event queue");
const _: () = assert!(
    RECORD_LEN_MAX + EVENT_RECORD_OVERHEAD + EVENT_HEAD_MAX <= FRAME_PAYLOAD_MAX as usize,
    "a record that is taken must be deliverable"
);
