//! Replies of a Redis server (RESP2), as far as streams and strings give them. Scope: one connection.
//! Invariants: bytes from the network never panic; a value's bytes are counted, not kept; a line is bounded.
//! Not here: which reply is the right one (`load`).
#![cfg_attr(not(test), deny(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing))]

/// The longest line. Errors and status are short.
const LINE_BYTES_MAX: usize = 64 << 10;
/// The largest value the protocol allows.
const BULK_BYTES_MAX: u64 = 512 << 20;

/// One reply.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reply {
    /// `+`: a status such as `OK`.
    Status(String),
    /// `-`: a command was refused.
    Error(String),
    /// `:`
    Integer(i64),
    /// `$`: a value of so many bytes; none where there is no value.
    Value(Option<u64>),
}

/// What is no reply.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NoReply {
    #[error("a line of more than {LINE_BYTES_MAX} bytes")]
    LongLine,
    #[error("a line that is no reply: {0:?}")]
    Line(String),
    #[error("a value without its end")]
    ValueEnd,
}

#[derive(Debug)]
enum State {
    Line,
    /// Bytes of the value and of the end behind it that have not come.
    Value {
        bytes: u64,
        left: u64,
    },
}

/// Reads replies.
#[derive(Debug)]
pub struct Replies {
    line: Vec<u8>,
    state: State,
}

impl Default for Replies {
    fn default() -> Replies {
        Replies { line: Vec::new(), state: State::Line }
    }
}

impl Replies {
    /// Takes bytes off the front up to the end of the next reply, if that is among them.
    ///
    /// # Errors
    /// What came is no reply, or an array, which nothing here asks for. The connection is lost then.
    pub fn next(&mut self, bytes: &mut &[u8]) -> Result<Option<Reply>, NoReply> {
        loop {
            match self.state {
                State::Line => {
                    let Some(line) = self.take_line(bytes)? else { return Ok(None) };
                    match parse(&line)? {
                        Reply::Value(Some(bytes)) => self.state = State::Value { bytes, left: bytes + 2 },
                        reply => return Ok(Some(reply)),
                    }
                }
                State::Value { bytes: value, left } => {
                    let Some(left) = skip_value(bytes, left)? else { return Ok(None) };
                    if left > 0 {
                        self.state = State::Value { bytes: value, left };
                        return Ok(None);
                    }
                    self.state = State::Line;
                    return Ok(Some(Reply::Value(Some(value))));
                }
            }
        }
    }

    /// A line without its end, once that has come.
    fn take_line(&mut self, bytes: &mut &[u8]) -> Result<Option<Vec<u8>>, NoReply> {
        let end = bytes.iter().position(|byte| *byte == b'\n');
        let (now, later) = bytes.split_at(end.map_or(bytes.len(), |end| end + 1));
        *bytes = later;
        self.line.extend_from_slice(now);
        if self.line.len() > LINE_BYTES_MAX {
            return Err(NoReply::LongLine);
        }
        if end.is_none() {
            return Ok(None);
        }
        let line = std::mem::take(&mut self.line);
        match line.strip_suffix(b"\r\n") {
            Some(line) => Ok(Some(line.to_vec())),
            None => Err(shown(&line)),
        }
    }
}

/// What is left of a value after these bytes; `None` when there are none.
fn skip_value(bytes: &mut &[u8], left: u64) -> Result<Option<u64>, NoReply> {
    if bytes.is_empty() {
        return Ok(None);
    }
    let count = usize::try_from(left).unwrap_or(usize::MAX).min(bytes.len());
    let (now, later) = bytes.split_at(count);
    // The last two bytes are the end of the line.
    let before = left - now.len() as u64;
    for (back, byte) in now.iter().rev().take(2).enumerate() {
        match (before + back as u64, byte) {
            (0, b'\n') | (1, b'\r') | (2.., _) => {}
            _ => return Err(NoReply::ValueEnd),
        }
    }
    *bytes = later;
    Ok(Some(before))
}

fn parse(line: &[u8]) -> Result<Reply, NoReply> {
    let text = std::str::from_utf8(line).map_err(|_| shown(line))?;
    let (kind, rest) = text.split_at_checked(1).ok_or_else(|| shown(line))?;
    match kind {
        "+" => Ok(Reply::Status(rest.to_owned())),
        "-" => Ok(Reply::Error(rest.to_owned())),
        ":" => rest.parse().map(Reply::Integer).map_err(|_| shown(line)),
        "$" if rest == "-1" => Ok(Reply::Value(None)),
        "$" => match rest.parse::<u64>() {
            Ok(bytes) if bytes <= BULK_BYTES_MAX => Ok(Reply::Value(Some(bytes))),
            _ => Err(shown(line)),
        },
        _ => Err(shown(line)),
    }
}

fn shown(line: &[u8]) -> NoReply {
    let shown = line.get(..line.len().min(64)).unwrap_or_default();
    NoReply::Line(String::from_utf8_lossy(shown).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn replies(stream: &[u8], piece: usize) -> Result<Vec<Reply>, NoReply> {
        let (mut parser, mut found) = (Replies::default(), Vec::new());
        for mut chunk in stream.chunks(piece) {
            while let Some(reply) = parser.next(&mut chunk)? {
                found.push(reply);
            }
            assert!(chunk.is_empty());
        }
        Ok(found)
    }

    #[test]
    fn replies_are_the_same_however_they_are_cut() {
        let stream = b"+OK\r\n$5\r\na\r\nbc\r\n$0\r\n\r\n:-7\r\n$-1\r\n-ERR no\r\n+half";
        let wanted = [
            Reply::Status("OK".to_owned()),
            Reply::Value(Some(5)),
            Reply::Value(Some(0)),
            Reply::Integer(-7),
            Reply::Value(None),
            Reply::Error("ERR no".to_owned()),
        ];
        for piece in 1..=stream.len() {
            assert_eq!(replies(stream, piece).unwrap(), wanted, "pieces of {piece}");
        }
    }

    #[test]
    fn what_is_no_reply_loses_the_connection() {
        for bad in
            ["*1\r\n", "HTTP/1.1 200\r\n", "$12x\r\n", ":\r\n", "\r\n", "+OK\n", "$-2\r\n", "$536870913\r\n"]
        {
            assert!(matches!(replies(bad.as_bytes(), 3), Err(NoReply::Line(_))), "{bad:?}");
        }
        for piece in 1..8 {
            assert_eq!(replies(b"$3\r\nabcde\r\n", piece), Err(NoReply::ValueEnd), "pieces of {piece}");
        }
        assert_eq!(replies(&vec![b'+'; LINE_BYTES_MAX + 1], 4_096), Err(NoReply::LongLine));
        assert!(matches!(replies(&[b'+', 0xff, b'\r', b'\n'], 9), Err(NoReply::Line(_))));
    }
}
