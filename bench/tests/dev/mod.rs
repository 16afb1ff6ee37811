//! A `felix dev` for one test, and the SDK's clients of it. Invariants: it is ended with the test, also when that fails.
#![allow(dead_code, reason = "each test program uses its part")]

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use felix_bench::cluster::DevBroker;
use felix_sdk::{Client, Event, Gap, SubscribeError, Subscription};
use tempfile::TempDir;

/// Whatever a test waits for takes less than this on a busy machine.
pub const DEADLINE: Duration = Duration::from_secs(60);

/// Four cores on whatever processors there are, and no spinning beside the test.
pub const FOUR_CORES: [&str; 4] = ["--set", "pin=false", "--set", "spin_us=0"];

/// See the module.
pub struct Dev {
    pub broker: DevBroker,
    _folder: TempDir,
}

impl Dev {
    /// Starts it with four unpinned cores and makes a stream `s` of `shards` shards.
    pub fn start(shards: u32, extra_args: &[&str]) -> Dev {
        let folder = tempfile::tempdir().unwrap();
        let args = [&FOUR_CORES[..], extra_args].concat();
        let broker =
            DevBroker::start(folder.path(), "0,1,2,3", &args).unwrap_or_else(|error| panic!("{error}"));
        broker.create_stream("s", shards).unwrap_or_else(|error| panic!("{error}"));
        Dev { broker, _folder: folder }
    }

    /// A client that reads its token from the file which `felix dev` renews.
    pub async fn client(&self) -> Client {
        let ready = self.broker.ready();
        Client::builder()
            .broker(ready.broker_addr.to_string())
            .ca_file(&ready.ca_file)
            .token_file(&ready.token_file)
            .tenant(ready.tenant.clone())
            .namespace(ready.namespace.clone())
            .connect()
            .await
            .unwrap_or_else(|error| panic!("{error}\n{}", self.broker.log()))
    }

    /// Kills the broker and waits until `felix dev` has started another one on the same port.
    pub fn restart_broker(&mut self) {
        let (address, pid) = (self.broker.ready().broker_addr, self.broker.ready().pids.broker);
        felix_bench::cluster::end_by_id(pid, "felix-broker");
        let deadline = Instant::now() + DEADLINE;
        while self.broker.reread().is_err() || self.broker.ready().pids.broker == pid {
            assert!(Instant::now() < deadline, "no other broker\n{}", self.broker.log());
            std::thread::yield_now();
        }
        assert_eq!(self.broker.ready().broker_addr, address);
    }

    /// The broker's metrics, by name with labels.
    pub fn metrics(&self) -> BTreeMap<String, f64> {
        let url = format!("{}/metrics", self.broker.ready().metrics_url.as_ref().unwrap());
        let text = ureq::get(url).call().unwrap().body_mut().read_to_string().unwrap();
        let value =
            |line: &str| Some((line.rsplit_once(' ')?.0.to_owned(), line.rsplit_once(' ')?.1.parse().ok()?));
        text.lines().filter(|line| !line.starts_with('#')).filter_map(value).collect()
    }
}

/// What a subscription gave.
#[derive(Debug, Default)]
pub struct Read {
    /// By shard, in the order they came.
    pub events: BTreeMap<u32, Vec<Event>>,
    pub gaps: Vec<Gap>,
    pub count: usize,
}

impl Read {
    /// Takes items until `done` holds.
    pub async fn until(&mut self, from: &mut Subscription, done: impl Fn(&Read) -> bool) {
        let reading = async {
            while !done(self) {
                match from.next().await.expect("the subscription goes on") {
                    Ok(event) => {
                        self.count += 1;
                        self.events.entry(event.shard).or_default().push(event);
                    }
                    Err(SubscribeError::Gap(gap)) => self.gaps.push(gap),
                    Err(error) => panic!("{error}"),
                }
            }
        };
        let ended = tokio::time::timeout(DEADLINE, reading).await;
        assert!(ended.is_ok(), "{} records and {} gaps", self.count, self.gaps.len());
    }

    /// Every record, shard by shard.
    pub fn payloads(&self) -> impl Iterator<Item = &[u8]> {
        self.events.values().flatten().map(|event| &event.payload[..])
    }

    /// Offsets rise by one in every shard.
    pub fn assert_dense(&self) {
        for (shard, events) in &self.events {
            let offsets: Vec<u64> = events.iter().map(|e| e.offset.expect("numbered").get()).collect();
            assert!(offsets.windows(2).all(|w| w[1] == w[0] + 1), "shard {shard}: {offsets:?}");
        }
    }
}
