//! Frames over one QUIC stream. Scope: one per stream.
//! Owns: reassembly of received frames.
//! Invariants: reading can be cancelled between any two polls without losing bytes; a frame with a flag bit
//! nobody knows ends the stream for us (client-protocol 2).
//! Not here: what the frames mean.

use bytes::{Bytes, BytesMut};
use felix_wire::client::Message;
use felix_wire::flags::Flags;
use felix_wire::frame::{Frame, FrameReader};
use felix_wire::limits::FRAME_PAYLOAD_MAX;
use quinn::{RecvStream, SendStream};

use crate::connection::{Granted, Seat};
use crate::error::Error;
use crate::limits::READ_CHUNKS;

/// What the broker's header alone may claim of memory, bytes: a frame of up to this length is put together in one place.
const TRUSTED_BYTES: usize = 1 << 20;

/// The receiving half of a stream, as frames.
pub(crate) struct FrameRecv {
    recv: RecvStream,
    reader: FrameReader,
    /// Where one read puts what has arrived.
    chunks: Box<[Bytes; READ_CHUNKS]>,
}

impl FrameRecv {
    pub(crate) fn new(recv: RecvStream) -> Self {
        let mut reader = FrameReader::new(FRAME_PAYLOAD_MAX);
        reader.trust(TRUSTED_BYTES);
        Self { recv, reader, chunks: Box::new(std::array::from_fn(|_| Bytes::new())) }
    }

    /// The broker said that it may answer with binary messages.
    pub(crate) fn take_binary_messages(&mut self) {
        self.reader.take_binary_messages();
    }

    /// The next frame; `None` when the broker finished the stream between two frames.
    ///
    /// # Errors
    /// [`Error::Lost`] when the transport failed, [`Error::Protocol`] for bytes that are no frame or end inside one.
    pub(crate) async fn next(&mut self) -> Result<Option<Frame>, Error> {
        loop {
            if let Some(frame) = self.buffered()? {
                return Ok(Some(frame));
            }
            match self.recv.read_chunks(&mut *self.chunks).await {
                Ok(Some(count)) => {
                    for chunk in self.chunks.iter_mut().take(count) {
                        self.reader.push(std::mem::take(chunk));
                    }
                }
                Ok(None) if self.reader.is_mid_frame() => {
                    return Err(Error::protocol("the stream ended inside a frame"));
                }
                Ok(None) => return Ok(None),
                Err(e) => return Err(Error::lost(e)),
            }
        }
    }

    /// A frame that has arrived whole already.
    ///
    /// # Errors
    /// [`Error::Protocol`] for bytes that are no frame.
    pub(crate) fn buffered(&mut self) -> Result<Option<Frame>, Error> {
        match self.reader.next() {
            Ok(Some(frame)) if !self.reader.knows(Flags(frame.flags)) => {
                Err(Error::protocol(format!("a frame with unknown flags {:#06x}", frame.flags)))
            }
            Ok(frame) => Ok(frame),
            Err(e) => Err(Error::protocol(e.to_string())),
        }
    }

    /// Reads and drops everything until the broker finishes its half.
    ///
    /// # Errors
    /// As [`FrameRecv::next`].
    pub(crate) async fn drain(&mut self) -> Result<(), Error> {
        while self.next().await?.is_some() {}
        Ok(())
    }
}

/// An authenticated bidirectional stream.
pub(crate) struct AuthedStream {
    pub(crate) send: SendStream,
    pub(crate) recv: FrameRecv,
    /// What the answer to this stream's `auth` granted.
    pub(crate) granted: Granted,
    /// Its place on the connection, for one that stays open.
    pub(crate) _seat: Option<Seat>,
}

impl AuthedStream {
    /// Writes one JSON message.
    ///
    /// # Errors
    /// [`Error::Lost`] when the transport failed.
    pub(crate) async fn write(&mut self, message: &Message<'_>) -> Result<(), Error> {
        write_message(&mut self.send, message).await
    }
}

/// Writes one JSON message.
///
/// # Errors
/// [`Error::Lost`] when the transport failed.
pub(crate) async fn write_message(send: &mut SendStream, message: &Message<'_>) -> Result<(), Error> {
    let mut out = BytesMut::new();
    message.encode_frame(&mut out);
    send.write_chunk(out.freeze()).await.map_err(Error::lost)
}
