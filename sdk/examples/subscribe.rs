//! Prints every record of a stream, from the oldest one held, until it is interrupted.
//!
//! `FELIX_DEV_FILE=<ready file of felix dev> cargo run -p felix-sdk --example subscribe -- <stream>`

mod dev;

use felix_sdk::{Start, SubscribeError};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let stream = std::env::args().nth(1).unwrap_or_else(|| "example".to_owned());
    let client = dev::connect().await?;
    let mut events = client.subscribe(stream).from(Start::Earliest).open().await?;
    while let Some(event) = events.next().await {
        match event {
            Ok(event) => {
                let offset = event.offset.map_or_else(|| "-".to_owned(), |offset| offset.to_string());
                println!("{}/{offset} {}", event.shard, String::from_utf8_lossy(&event.payload));
            }
            // A gap is told and the shard goes on; anything else ends it.
            Err(SubscribeError::Gap(gap)) => eprintln!("missing records: {gap:?}"),
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}
