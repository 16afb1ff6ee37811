//! Reading, writing and ending streams. Scope: one core's connections.
//! Owns: nothing; the state is the machine's.
//! Invariants: credit goes back to the peer only for bytes that were read, so an unread stream holds its own window
//! and nothing else; every call that may have something to send marks its connection; a stale key or a stream that
//! is not there never panics.
//! Not here: which stream is worth reading (the session's choice).

use bytes::Bytes;
use quinn_proto::{Dir, ReadError, SendStream, Side, StreamId, VarInt, WriteError};

use super::event::{ConnKey, ReadOutcome, WriteOutcome, WriteState};
use super::machine::{Conn, Quic};
use super::settings::clamp;

impl Quic {
    /// The next bytes of a stream, at most `max_bytes` of them, without copying.
    pub fn read(&mut self, key: ConnKey, stream: StreamId, max_bytes: usize) -> ReadOutcome {
        let mut chunk = None;
        match self.read_chunks(key, stream, max_bytes, 1, |bytes| chunk = Some(bytes)) {
            Some(end) => end,
            None => chunk.map_or(ReadOutcome::Blocked, ReadOutcome::Data),
        }
    }

    /// Appends the next bytes of a stream to `out` until `max_bytes` are there or nothing is left for now. Costs
    /// one stream look-up for all of them.
    ///
    /// Returns the bytes appended, and how the stream stands when it is not merely `max_bytes` that ended the read:
    /// `Blocked`, `Finished`, `Reset` or `Gone`, never `Data`.
    pub fn read_into(
        &mut self,
        key: ConnKey,
        stream: StreamId,
        max_bytes: usize,
        out: &mut Vec<Bytes>,
    ) -> (usize, Option<ReadOutcome>) {
        let mut total = 0;
        let end = self.read_chunks(key, stream, max_bytes, usize::MAX, |bytes| {
            total += bytes.len();
            out.push(bytes);
        });
        (total, end)
    }

    /// `None`: a limit ended the read, there may be more.
    fn read_chunks(
        &mut self,
        key: ConnKey,
        stream: StreamId,
        max_bytes: usize,
        max_chunks: usize,
        mut take: impl FnMut(Bytes),
    ) -> Option<ReadOutcome> {
        let Some(conn) = self.conn_mut(key) else { return Some(ReadOutcome::Gone) };
        if !conn.may_receive(stream) {
            return Some(ReadOutcome::Gone);
        }
        let mut left = max_bytes;
        let mut chunks_left = max_chunks;
        let mut receiver = conn.inner.recv_stream(stream);
        let Ok(mut chunks) = receiver.read(true) else {
            conn.readable.remove(&stream);
            return Some(ReadOutcome::Gone);
        };
        let end = loop {
            if left == 0 || chunks_left == 0 {
                break None;
            }
            match chunks.next(left) {
                Ok(Some(chunk)) => {
                    left -= chunk.bytes.len();
                    chunks_left -= 1;
                    take(chunk.bytes);
                }
                Ok(None) => break Some(ReadOutcome::Finished),
                Err(ReadError::Blocked) => break Some(ReadOutcome::Blocked),
                Err(ReadError::Reset(code)) => break Some(ReadOutcome::Reset(code)),
            }
        };
        let credit_due = chunks.finalize().should_transmit();
        if end.is_some() {
            conn.readable.remove(&stream);
        }
        if credit_due {
            self.mark_dirty(key.slot);
        }
        end
    }

    /// Writes `data`; what was taken is split off its front.
    pub fn write(&mut self, key: ConnKey, stream: StreamId, data: &mut Bytes) -> WriteOutcome {
        self.write_chunks(key, stream, std::slice::from_mut(data))
    }

    /// Writes `chunks` in order without copying; those taken whole become empty, one taken in part keeps its rest.
    pub fn write_chunks(&mut self, key: ConnKey, stream: StreamId, chunks: &mut [Bytes]) -> WriteOutcome {
        let gone = WriteOutcome { written: 0, state: WriteState::Gone };
        let Some(conn) = self.open_conn_mut(key) else { return gone };
        if !conn.may_send(stream) {
            return gone;
        }
        let wanted: usize = chunks.iter().map(Bytes::len).sum();
        if wanted == 0 {
            return WriteOutcome { written: 0, state: WriteState::All };
        }
        let mut sender = conn.inner.send_stream(stream);
        let mut written = 0;
        let state = loop {
            match sender.write_chunks(chunks) {
                // Only a write that takes nothing makes the transport say when to go on: write until then.
                Ok(more) => written += more.bytes,
                Err(error) => break why_not(&sender, &error),
            }
            if written == wanted {
                break WriteState::All;
            }
        };
        // Also when blocked: the peer is told what it is that blocks us.
        if written > 0 || state == WriteState::Blocked {
            self.mark_dirty(key.slot);
        }
        WriteOutcome { written, state }
    }

    /// Ends our half of a stream after what was written. `Finished` follows when all of it arrived.
    ///
    /// False when there is nothing to end: the stream or connection is gone, finished, reset or stopped.
    pub fn finish(&mut self, key: ConnKey, stream: StreamId) -> bool {
        let Some(conn) = self.open_conn_mut(key) else { return false };
        let done = conn.may_send(stream) && conn.inner.send_stream(stream).finish().is_ok();
        if done {
            self.mark_dirty(key.slot);
        }
        done
    }

    /// Abandons our half of a stream: what did not arrive yet never will. False when there is nothing to abandon.
    pub fn reset(&mut self, key: ConnKey, stream: StreamId, code: VarInt) -> bool {
        let Some(conn) = self.open_conn_mut(key) else { return false };
        let done = conn.may_send(stream) && conn.inner.send_stream(stream).reset(code).is_ok();
        if done {
            self.mark_dirty(key.slot);
        }
        done
    }

    /// Asks the peer to stop its half of a stream; unread bytes are dropped and their credit returned. Reads answer
    /// `Gone` from here on. False when there is nothing to stop.
    pub fn stop_sending(&mut self, key: ConnKey, stream: StreamId, code: VarInt) -> bool {
        let Some(conn) = self.open_conn_mut(key) else { return false };
        let done = conn.may_receive(stream) && conn.inner.recv_stream(stream).stop(code).is_ok();
        conn.readable.remove(&stream);
        if done {
            self.mark_dirty(key.slot);
        }
        done
    }

    /// Opens a stream only we write to. `None` when the peer allows no more (then `StreamsAvailable` will say
    /// when) or the connection is gone.
    pub fn open_uni(&mut self, key: ConnKey) -> Option<StreamId> {
        self.open_conn_mut(key)?.inner.streams().open(Dir::Uni)
    }

    /// Opens a stream both sides write to; see `open_uni`. The peer learns of it with the first byte or the end.
    pub fn open_bi(&mut self, key: ConnKey) -> Option<StreamId> {
        self.open_conn_mut(key)?.inner.streams().open(Dir::Bi)
    }

    /// Sets the credit of a whole connection, in unread bytes over all its streams. Raising it tells the peer at
    /// once; lowering it takes effect as bytes are read.
    pub fn set_receive_window(&mut self, key: ConnKey, bytes: u64) {
        if let Some(conn) = self.open_conn_mut(key) {
            conn.inner.set_receive_window(clamp(bytes));
            self.mark_dirty(key.slot);
        }
    }

    /// Sets how many bytes the connection may hold that were written and not acknowledged.
    pub fn set_send_window(&mut self, key: ConnKey, bytes: u64) {
        if let Some(conn) = self.open_conn_mut(key) {
            conn.inner.set_send_window(bytes);
            // Streams it unblocks are announced by `Writable`.
            self.touch(key.slot);
        }
    }

    /// Sets how many streams the peer may have open; a lower number takes effect as streams end.
    pub fn set_max_concurrent_streams(&mut self, key: ConnKey, dir: Dir, count: u32) {
        if let Some(conn) = self.open_conn_mut(key) {
            conn.inner.set_max_concurrent_streams(dir, count.min(super::settings::STREAMS_MAX).into());
            self.mark_dirty(key.slot);
        }
    }
}

/// What keeps a stream from taking more. That the peer stopped it counts before every other reason.
fn why_not(sender: &SendStream<'_>, error: &WriteError) -> WriteState {
    match (sender.stopped(), error) {
        (Ok(Some(code)), _) => WriteState::Stopped(code),
        (_, WriteError::Stopped(code)) => WriteState::Stopped(*code),
        (_, WriteError::Blocked) => WriteState::Blocked,
        (_, WriteError::ClosedStream) => WriteState::Gone,
    }
}

impl Conn {
    /// Whether the peer can have sent something on `stream`.
    fn may_receive(&self, stream: StreamId) -> bool {
        stream.dir() == Dir::Bi || stream.initiator() != self.side()
    }

    /// Whether `stream` has a half that is ours to write.
    fn may_send(&self, stream: StreamId) -> bool {
        stream.dir() == Dir::Bi || stream.initiator() == self.side()
    }

    fn side(&self) -> Side {
        self.inner.side()
    }
}
