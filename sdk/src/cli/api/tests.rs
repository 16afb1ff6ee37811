//! Against a listener that answers what the test wrote.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::thread::JoinHandle;

use serde_json::{Value, json};

use super::*;

/// A server that answers one request per entry, each on its own connection, and tells the request lines it saw.
fn server(answers: Vec<(u16, Value)>) -> (Api, JoinHandle<Vec<String>>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let thread = std::thread::spawn(move || {
        let mut seen = Vec::new();
        for (status, body) in answers {
            let (stream, _) = listener.accept().unwrap();
            let mut reader = BufReader::new(&stream);
            let mut first = String::new();
            reader.read_line(&mut first).unwrap();
            let mut length = 0;
            loop {
                let mut line = String::new();
                reader.read_line(&mut line).unwrap();
                if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length:") {
                    length = value.trim().parse().unwrap();
                }
                if line.trim().is_empty() {
                    break;
                }
            }
            reader.read_exact(&mut vec![0; length]).unwrap();
            seen.push(first.trim().to_owned());
            let body = body.to_string();
            let head =
                format!("HTTP/1.1 {status} x\r\nConnection: close\r\nContent-Length: {}\r\n\r\n", body.len());
            (&stream).write_all(format!("{head}{body}").as_bytes()).unwrap();
        }
        seen
    });
    (Api::bearer(&url, Secret::Text("t".to_owned())).unwrap(), thread)
}

fn error(code: &str) -> Value {
    json!({ "code": code, "message": format!("it is {code}"), "request_id": null })
}

#[test]
fn every_page_is_read_and_names_are_encoded() {
    let pages = vec![
        (200, json!({ "items": [1, 2], "next_cursor": "a/b=" })),
        (200, json!({ "items": [3], "next_cursor": "" })),
    ];
    let (api, server) = server(pages);
    let items: Vec<u32> = api.list(&["v1", "x y"], "leader=n").unwrap();
    assert_eq!(items, [1, 2, 3]);
    let seen = server.join().unwrap();
    assert_eq!(seen[0], "GET /v1/x%20y?limit=1000&leader=n HTTP/1.1");
    assert_eq!(seen[1], "GET /v1/x%20y?limit=1000&leader=n&cursor=a%2Fb%3D HTTP/1.1");
}

#[test]
fn a_busy_control_plane_is_asked_again() {
    let (api, server) = server(vec![(503, error("busy")), (201, json!("made"))]);
    let answer: Answer<String> = api.post(&["v1"], &json!({})).unwrap();
    assert!(answer.created);
    assert_eq!(answer.document, "made");
    assert_eq!(server.join().unwrap().len(), 2);
}

#[test]
fn refusals_have_the_status_of_their_kind_and_the_servers_message() {
    let cases = [
        (404, "not_found", Kind::NotFound),
        (401, "unauthorized", Kind::Refused),
        (403, "forbidden", Kind::Refused),
        (409, "conflict", Kind::Refused),
        (503, "unavailable", Kind::OutcomeUnknown),
        (500, "internal", Kind::OutcomeUnknown),
    ];
    for (status, code, kind) in cases {
        let (api, server) = server(vec![(status, error(code))]);
        let failure = api.delete(&["v1"]).unwrap_err();
        assert_eq!((failure.kind, failure.message), (kind, format!("it is {code}")));
        server.join().unwrap();
    }
}

#[test]
fn nobody_listening_is_unreachable_and_an_answer_that_never_comes_to_a_write_is_unknown() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let api = Api::bearer(&url, Secret::Text("t".to_owned())).unwrap();
    let thread = std::thread::spawn(move || drop(listener.accept().unwrap()));
    assert_eq!(api.delete(&["v1"]).unwrap_err().kind, Kind::OutcomeUnknown);
    thread.join().unwrap();
    assert_eq!(api.delete(&["v1"]).unwrap_err().kind, Kind::Unreachable);
}

#[test]
fn https_is_refused_with_a_reason() {
    let failure = Api::bearer("https://x", Secret::Text("t".to_owned())).unwrap_err();
    assert_eq!(failure.kind, Kind::Usage);
    assert!(failure.message.contains("http://"));
}
