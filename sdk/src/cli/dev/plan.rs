//! What `felix dev` was asked for, checked and made absolute. Scope: once, before anything is started.
//! Invariants: settings that `felix dev` decides itself cannot be set from outside; nothing is written here.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, TcpListener, UdpSocket};
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;

use crate::cli::duration;
use crate::cli::failure::{Failure, Outcome};

/// Client port when none is given, as the broker's own default.
const DEFAULT_PORT: u16 = 5_000;
/// Broker settings that `felix dev` decides.
const OWN_SETTINGS: [&str; 11] = [
    "quic_bind",
    "metrics_bind",
    "cores",
    "data_dir",
    "ready_file",
    "tls_cert",
    "tls_key",
    "controlplane_url",
    "node_id",
    "node_token",
    "node_token_file",
];
/// Broker settings in which development differs from the broker's own defaults: a stream is usable at once after it
/// was made, nothing is dropped for a slow reader, Ctrl-C ends soon, acknowledged means durable, and files are small.
const DEV_SETTINGS: [(&str, &str); 8] = [
    ("controlplane_sync_interval_ms", "200"),
    ("sub_queue_policy", "block"),
    (DRAIN_SETTING, "5000"),
    ("fsync", "on_commit"),
    ("segment_bytes", "32MiB"),
    ("commit_slot_bytes", "4MiB"),
    ("log_memory", "32MiB"),
    ("disk_low", "256MiB"),
];
const DRAIN_SETTING: &str = "shutdown_drain_timeout_ms";
const PREDRAIN_SETTING: &str = "shutdown_predrain_ms";

#[derive(Clone, Debug, Args)]
pub struct DevArgs {
    /// Folder for everything that is kept
    #[arg(long, value_name = "DIR", default_value = "./felix-data")]
    data_dir: PathBuf,
    /// CPUs the broker serves on, such as 0,2-3; `auto` takes all it may use
    #[arg(long, value_name = "LIST", default_value = "auto")]
    cores: String,
    /// Client port (UDP); the control plane gets the same number (TCP), the broker's metrics the next. 0 takes free ones
    #[arg(long, default_value_t = DEFAULT_PORT, value_parser = clap::value_parser!(u16).range(..=65_534))]
    port: u16,
    /// Write where everything is to this file once it is ready (JSON, complete or absent)
    #[arg(long, value_name = "FILE")]
    ready_file: Option<PathBuf>,
    /// Publish a file while a subscriber reads it, check every byte; then again to a stream on disk, whose broker is killed
    /// in the middle; and end
    #[arg(long)]
    demo: bool,
    /// File for --demo; this program itself by default
    #[arg(long, value_name = "FILE", requires = "demo")]
    demo_file: Option<PathBuf>,
    /// How long a token is valid; files are rewritten after two thirds of it
    #[arg(long, value_name = "TIME", default_value = "15m", value_parser = duration::parse_seconds)]
    token_ttl: Duration,
    /// The broker has no logs: streams and caches are in memory, and durable ones are refused
    #[arg(long, conflicts_with = "demo")]
    memory: bool,
    /// Setting of the broker, such as max_frame_bytes=1MiB; may be repeated
    #[arg(long, value_name = "KEY=VALUE", value_parser = setting)]
    set: Vec<(String, String)>,
}

fn setting(text: &str) -> Result<(String, String), String> {
    let (key, value) = text.split_once('=').ok_or("it is key=value")?;
    let key = key.trim().replace('-', "_");
    if OWN_SETTINGS.contains(&key.as_str()) {
        return Err(format!("`{key}` is decided by `felix dev`"));
    }
    Ok((key, value.to_owned()))
}

/// See the module.
#[derive(Clone, Debug)]
pub struct Plan {
    pub data_dir: PathBuf,
    pub cores: String,
    /// 0: any free ones.
    pub port: u16,
    pub ready_file: Option<PathBuf>,
    /// The file of the demonstration, when one is wanted.
    pub demo: Option<PathBuf>,
    pub token_ttl: Duration,
    /// The broker has a folder for logs.
    pub has_logs: bool,
    /// Settings of the broker, by key.
    pub broker_settings: BTreeMap<String, String>,
    /// How long the broker may take to drain.
    pub drain: Duration,
}

impl Plan {
    /// # Errors
    /// `Usage` for what cannot work.
    pub fn new(args: DevArgs) -> Outcome<Plan> {
        let absolute = |path: PathBuf| {
            std::path::absolute(&path).map_err(|error| Failure::usage(format!("{}: {error}", path.display())))
        };
        let own = || std::env::current_exe().map_err(|error| Failure::other(error.to_string()));
        let demo = match (args.demo, args.demo_file) {
            (false, _) => None,
            (true, Some(path)) => Some(absolute(path)?),
            (true, None) => Some(own()?),
        };
        let mut broker_settings: BTreeMap<String, String> =
            DEV_SETTINGS.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
        broker_settings.extend(args.set);
        let millis = |key: &str| match broker_settings
            .get(key)
            .map(|value| value.parse().map(Duration::from_millis))
        {
            None => Ok(Duration::ZERO),
            Some(Ok(time)) => Ok(time),
            Some(Err(_)) => Err(Failure::usage(format!("--set {key}: it is a number of milliseconds"))),
        };
        let drain = millis(DRAIN_SETTING)? + millis(PREDRAIN_SETTING)?;
        Ok(Plan {
            data_dir: absolute(args.data_dir)?,
            cores: args.cores,
            port: args.port,
            ready_file: args.ready_file.map(absolute).transpose()?,
            demo,
            token_ttl: args.token_ttl,
            has_logs: !args.memory,
            broker_settings,
            drain,
        })
    }

    /// The port of the broker's metrics; 0 for any.
    pub fn metrics_port(&self) -> u16 {
        if self.port == 0 { 0 } else { self.port + 1 }
    }

    /// Looks whether the ports are free, so that a taken one is said clearly. Somebody may still be faster.
    ///
    /// # Errors
    /// `Other` that names the port and what to do.
    pub fn check_ports(&self) -> Outcome {
        let taken = |protocol: &str, port: u16, error: std::io::Error| {
            Failure::other(format!(
                "{protocol} port {port} on 127.0.0.1 cannot be used: {error}. Choose another with --port, or --port 0"
            ))
        };
        if self.port == 0 {
            return Ok(());
        }
        let (client, metrics) = (self.port, self.metrics_port());
        UdpSocket::bind((Ipv4Addr::LOCALHOST, client)).map_err(|error| taken("UDP", client, error))?;
        for port in [client, metrics] {
            TcpListener::bind((Ipv4Addr::LOCALHOST, port)).map_err(|error| taken("TCP", port, error))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        dev: DevArgs,
    }

    fn plan(arguments: &[&str]) -> Result<Plan, String> {
        let line =
            Line::try_parse_from(["dev"].iter().chain(arguments)).map_err(|error| error.to_string())?;
        Plan::new(line.dev).map_err(|failure| failure.message)
    }

    #[test]
    fn paths_are_absolute_and_defaults_are_those_of_development() {
        let plan = plan(&[]).unwrap();
        assert!(plan.data_dir.is_absolute() && plan.data_dir.ends_with("felix-data"));
        assert_eq!((plan.port, plan.metrics_port()), (5_000, 5_001));
        assert_eq!(plan.broker_settings["sub_queue_policy"], "block");
        assert_eq!(plan.drain, Duration::from_secs(5));
        assert_eq!((plan.demo, plan.has_logs), (None, true));
    }

    #[test]
    fn a_broker_without_logs_shows_no_demonstration() {
        assert!(!plan(&["--memory"]).unwrap().has_logs);
        assert!(plan(&["--memory", "--demo"]).is_err(), "half of it is a durable stream");
    }

    #[test]
    fn settings_of_the_broker_pass_through_and_own_ones_are_refused() {
        let plan_of = |value: &str| plan(&["--set", value]);
        let passed = plan_of("spin-us=0").unwrap();
        assert_eq!(passed.broker_settings["spin_us"], "0");
        assert_eq!(plan_of("shutdown_drain_timeout_ms=700").unwrap().drain, Duration::from_millis(700));
        assert!(plan_of("shutdown_drain_timeout_ms=x").is_err());
        assert!(plan_of("quic_bind=0.0.0.0:1").unwrap_err().contains("decided by"));
        assert!(plan_of("spin_us").is_err());
    }

    #[test]
    fn a_taken_port_is_named_with_what_to_do() {
        let taken = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = taken.local_addr().unwrap().port().to_string();
        let message = plan(&["--port", &port]).unwrap().check_ports().unwrap_err().message;
        assert!(message.contains(&port) && message.contains("--port"), "{message}");
        assert!(plan(&["--port", "0"]).unwrap().check_ports().is_ok());
        assert!(plan(&["--port", "65535"]).is_err());
    }
}
