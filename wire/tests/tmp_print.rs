//! tmp
use bytes::BytesMut;
use felix_wire::client::{Form, Message};
#[test]
fn print() {
    let mut all = String::new();
    for line in std::fs::read_to_string("/tmp/gl/cases.txt").unwrap().lines() {
        let m = Message::decode(line.as_bytes()).unwrap();
        let mut out = BytesMut::new();
        m.encode_frame_as(Form::Binary, &mut out);
        all += &hex::encode(&out);
        all.push('\n');
    }
    std::fs::write("/tmp/gl/hex.txt", all).unwrap();
}
