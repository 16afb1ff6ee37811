//! Works on the records of a durable stream until its standard input ends; each record goes to one worker of the group.
//!
//! `FELIX_DEV_FILE=<ready file of felix dev> cargo run -p felix-sdk --example worker -- <stream> <group>`

mod dev;

use std::time::Duration;

use felix_sdk::{Delivery, Settle};

async fn handle(record: Delivery) -> Settle {
    println!("{:?}: {}", record.claim, String::from_utf8_lossy(&record.payload));
    // Its claim is held as long as this takes.
    tokio::time::sleep(Duration::from_millis(10)).await;
    if record.payload.is_empty() { Settle::DeadLetter } else { Settle::Ack }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let stream = arguments.next().unwrap_or_else(|| "orders".to_owned());
    let group = arguments.next().unwrap_or_else(|| "workers".to_owned());
    let client = dev::connect().await?;
    // Until Ctrl-D, or the end of a pipe.
    let stop = async { drop(tokio::task::spawn_blocking(|| std::io::stdin().lines().count()).await) };
    let report = client.group(stream, &group)?.worker().concurrency(8).run(handle, stop).await?;
    println!("{report:?}");
    client.close().await;
    Ok(())
}
