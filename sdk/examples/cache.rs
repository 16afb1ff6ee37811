//! Sets, follows and counts keys of a cache.
//!
//! `FELIX_DEV_FILE=<ready file of felix dev> cargo run -p felix-sdk --example cache -- <cache>`

mod dev;

use std::time::Duration;

use felix_sdk::Condition;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let name = std::env::args().nth(1).unwrap_or_else(|| "example".to_owned());
    let client = dev::connect().await?;
    let cache = client.cache(name.as_str())?;
    cache.put("greeting", "hello", Duration::from_secs(60)).await?;
    let found = cache.get("greeting").await?;
    println!("{found:?}");
    // Only if nobody has written it meanwhile.
    if let Some(version) = found.and_then(|entry| entry.version) {
        let changed = cache.put_if("greeting", "good morning", None, Condition::Version(version)).await?;
        println!("{changed:?}");
    }
    let counters = client.counters(name)?;
    println!("run {} times", counters.add("runs", 1).await?);
    client.close().await;
    Ok(())
}
