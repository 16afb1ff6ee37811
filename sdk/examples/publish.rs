//! Publishes ten records to a stream and prints where each was stored.
//!
//! `FELIX_DEV_FILE=<ready file of felix dev> cargo run -p felix-sdk --example publish -- <stream>`

mod dev;

use felix_sdk::Bytes;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let stream = std::env::args().nth(1).unwrap_or_else(|| "example".to_owned());
    let client = dev::connect().await?;
    let publisher = client.publisher(stream).open().await?;
    let mut receipts = Vec::new();
    for number in 0..10 {
        // Records with the same key go to the same shard and keep their order.
        let key = Bytes::from(format!("key-{}", number % 3));
        receipts.push(publisher.send(format!("record {number}"), Some(key)).await?);
    }
    for receipt in receipts {
        let published = receipt.await?;
        println!("shard {} offset {:?}", published.shard, published.offset.map(|offset| offset.get()));
    }
    publisher.close().await?;
    client.close().await;
    Ok(())
}
