//! Connects to the brokers of `felix dev`, as its ready file describes them.

use felix_sdk::Client;

pub async fn connect() -> Result<Client, Box<dyn std::error::Error>> {
    let path =
        std::env::var("FELIX_DEV_FILE").map_err(|_| "FELIX_DEV_FILE names no ready file of `felix dev`")?;
    let ready: serde_json::Value = serde_json::from_slice(&std::fs::read(path)?)?;
    let member = |name: &str| -> Result<String, String> {
        let text = ready.get(name).and_then(serde_json::Value::as_str);
        text.map(str::to_owned).ok_or_else(|| format!("the ready file has no {name}"))
    };
    let client = Client::builder()
        .broker(member("broker_addr")?)
        .ca_file(member("ca_file")?)
        .token_file(member("token_file")?)
        .tenant(member("tenant")?)
        .namespace(member("namespace")?)
        .connect()
        .await?;
    Ok(client)
}
