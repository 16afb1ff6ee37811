//! Takes part in a group: joins it, stays in it, polls the shards that it is dealt and gives back those that are to move.
//! Scope: per consumer with leases.
//! Owns: the membership, its pollers, and how many records each may have claimed.
//! Invariants: a shard is polled under a lease only as long as that holds; it is given back when nothing of it is polled or
//! unsettled; a membership that is lost is begun again, unless another instance of the member took its place.
//! Not here: what the answers mean (`holdings`), one shard (`poller`).

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use felix_wire::client::{GroupLeases, ShardLease};
use felix_wire::error_code::ErrorCode;
use felix_wire::id::{LeaseId, MembershipId};
use felix_wire::limits::{GROUP_POLL_RECORDS_MAX, GROUP_TERM_MS_DEFAULT};
use tokio::sync::{Semaphore, mpsc, watch};
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::Instant;

use crate::backoff::{Backoff, jitter_seed};
use crate::error::Error;
use crate::group::Group;
use crate::group::deliveries::PollError;
use crate::group::holdings::{Holdings, Step};
use crate::group::lease::Stay;
use crate::group::poller::{Ended, Held, Poller, Under, patience};
use crate::request::RequestError;

/// What is said of a refusal when another instance of the member has joined.
const REPLACED: &str = "member_replaced";

/// A shard that is polled.
struct Polled {
    of: ShardLease,
    under: Under,
    room: Arc<Semaphore>,
    /// Records it may have claimed and not handed out.
    share: usize,
    stop: watch::Sender<bool>,
    task: AbortHandle,
    ended: Option<Ended>,
}

/// A request that was answered, or not.
struct Answer {
    asked: Instant,
    told: Vec<ShardLease>,
    seen: Option<u64>,
    said: Result<GroupLeases, RequestError>,
}

/// What a keeper waits for.
enum Happened {
    Left,
    Stopped,
    Answered(Answer),
    Ended(Option<(LeaseId, Ended)>),
    Settled,
    Over,
}

type Request = Pin<Box<dyn Future<Output = Answer> + Send>>;

/// The membership as it was answered last.
#[derive(Clone, Copy)]
struct Membership {
    session: MembershipId,
    version: u64,
}

/// See the module.
pub(crate) struct Keeper {
    group: Group,
    member: Arc<str>,
    instance: u64,
    prefetch: usize,
    wait: Duration,
    /// What is asked for, and what was granted.
    asked_term: Option<Duration>,
    term: Duration,
    /// Gone when no poll is to begin any more.
    queue: Option<mpsc::Sender<Result<Held, PollError>>>,
    stopped: watch::Receiver<bool>,
    left: watch::Receiver<bool>,
    membership: Option<Membership>,
    holdings: Holdings,
    polled: BTreeMap<LeaseId, Polled>,
    pollers: JoinSet<(LeaseId, Ended)>,
    backoff: Backoff,
    failing: Option<Instant>,
}

impl Keeper {
    pub(crate) fn new(
        group: Group,
        (prefetch, wait, term): (usize, Duration, Option<Duration>),
        queue: mpsc::Sender<Result<Held, PollError>>,
        (stopped, left): (watch::Receiver<bool>, watch::Receiver<bool>),
    ) -> Self {
        let member = match &group.member {
            Some(member) => Arc::clone(member),
            None => format!("member-{:016x}", jitter_seed()).into(),
        };
        Self {
            group,
            member,
            instance: jitter_seed(),
            prefetch,
            wait,
            asked_term: term,
            term: term.unwrap_or(Duration::from_millis(GROUP_TERM_MS_DEFAULT)),
            queue: Some(queue),
            stopped,
            left,
            membership: None,
            holdings: Holdings::default(),
            polled: BTreeMap::new(),
            pollers: JoinSet::new(),
            backoff: Backoff::default(),
            failing: None,
        }
    }

    /// Until it is told to leave, or cannot be a member any more.
    pub(crate) async fn run(mut self) {
        let (mut stopped, mut left) = (self.stopped.clone(), self.left.clone());
        let mut settled = self.group.unsettled.watch();
        let mut request = self.request(Duration::ZERO);
        loop {
            let ends = self.holdings.next_end();
            let happened = tokio::select! {
                biased;
                // As good as that when the sender is gone.
                _ = left.wait_for(|left| *left) => Happened::Left,
                _ = stopped.wait_for(|stopped| *stopped), if self.queue.is_some() => Happened::Stopped,
                answer = &mut request => Happened::Answered(answer),
                Some(ended) = self.pollers.join_next() => Happened::Ended(ended.ok()),
                _ = settled.changed() => Happened::Settled,
                () = sleep_until(ends) => Happened::Over,
            };
            match happened {
                Happened::Left => break,
                Happened::Stopped => self.stop(),
                Happened::Answered(answer) => match self.answered(answer) {
                    Ok(after) => request = self.request(after),
                    Err(error) => return self.fail(error).await,
                },
                // One that was ended by us is no news.
                Happened::Ended(None) | Happened::Settled => {}
                Happened::Ended(Some((lease, ended))) => self.ended(lease, ended),
                Happened::Over => {
                    let over = self.holdings.expire(Instant::now());
                    self.carry_out(over);
                }
            }
            if self.all_failed() {
                break;
            }
            if self.release_drained() {
                // One that waits at the broker is answered when this one comes.
                request = self.request(Duration::ZERO);
            }
        }
        if let Some(Membership { session, .. }) = self.membership {
            // When it is not heard, the term ends all the same.
            drop(self.group.leave(Stay { member: &self.member, session }).await);
        }
        let all = self.holdings.end();
        self.carry_out(all);
    }

    /// To join, or to stay; `after` a while.
    fn request(&self, after: Duration) -> Request {
        let (group, member, instance) = (self.group.clone(), Arc::clone(&self.member), self.instance);
        let told = self.holdings.released().to_vec();
        let (membership, asked_term, term) = (self.membership, self.asked_term, self.term);
        Box::pin(async move {
            tokio::time::sleep(after).await;
            let asked = Instant::now();
            let Some(Membership { session, version }) = membership else {
                let said = group.join(&member, instance, asked_term).await;
                return Answer { asked, told: Vec::new(), seen: None, said };
            };
            let seen = Some(version);
            let stay = Stay { member: &member, session };
            let beat = group.heartbeat(stay, &told, (seen, term / 3));
            let said = match tokio::time::timeout(term * 2 / 3, beat).await {
                Ok(said) => said,
                Err(_) => {
                    let waited = asked.elapsed();
                    Err(RequestError::Unavailable(Error::TimedOut { what: "group_heartbeat", waited }))
                }
            };
            Answer { asked, told, seen, said }
        })
    }

    /// Gives how long the next request is put off.
    ///
    /// # Errors
    /// What ends the membership for good.
    fn answered(&mut self, answer: Answer) -> Result<Duration, RequestError> {
        let Answer { asked, told, seen, said } = answer;
        let error = match said {
            Ok(view) => {
                self.failing = None;
                self.backoff.reset();
                self.term = Duration::from_millis(view.term_ms);
                self.membership = Some(Membership { session: view.session, version: view.version });
                let steps = self.holdings.answered(&view, &told, asked);
                self.carry_out(steps);
                // A broker that does not wait, as one that is being stopped, is not to be asked all the time.
                let hurried = seen == Some(view.version) && asked.elapsed() < self.term / 12;
                return Ok(if hurried { self.term / 6 } else { Duration::ZERO });
            }
            Err(error) => error,
        };
        if error.code() == Some(&ErrorCode::StaleClaim) {
            if error.refusal().and_then(|refusal| refusal.reason.as_deref()) == Some(REPLACED) {
                return Err(error);
            }
            // The broker does not know this member any more, and others may hold its shards.
            self.membership = None;
            let all = self.holdings.end();
            self.carry_out(all);
            return Ok(self.backoff.next_delay(jitter_seed()));
        }
        let since = *self.failing.get_or_insert_with(Instant::now);
        let patience = patience(&error, &self.group.place.shared().identity.deadlines);
        if patience.is_some_and(|patience| since.elapsed() >= patience) {
            return Err(error);
        }
        let wait = error.refusal().and_then(|refusal| refusal.retry_after).unwrap_or_default();
        Ok(self.backoff.next_delay(jitter_seed()).max(wait))
    }

    fn carry_out(&mut self, steps: Vec<Step>) {
        if steps.is_empty() {
            return;
        }
        for step in steps {
            match step {
                Step::Begin(of) => self.begin(of),
                Step::GiveBack(of) => {
                    if let Some(polled) = self.polled.get(&of.lease) {
                        polled.stop.send_replace(true);
                    }
                }
                Step::Lost(of) => self.forget(of.lease),
            }
        }
        self.share();
    }

    fn begin(&mut self, of: ShardLease) {
        let Some(queue) = self.queue.clone() else { return };
        self.group.unsettled.begin(of.lease);
        let (stop, stopped) = watch::channel(false);
        let (room, under) = (Arc::new(Semaphore::new(0)), Under::new(of.lease));
        let poller = Poller {
            group: self.group.clone(),
            shard: of.shard.get(),
            under: Some(under.clone()),
            wait: self.wait.min(self.term / 4),
            // What an earlier lease has claimed is owed when this one polls.
            reclaim: false,
            room: Arc::clone(&room),
            queue,
            stopped,
        };
        let lease = of.lease;
        let task = self.pollers.spawn(async move { (lease, poller.run().await) });
        self.polled.insert(lease, Polled { of, under, room, share: 0, stop, task, ended: None });
    }

    /// Nothing of a lease is polled or handed out any more.
    fn forget(&mut self, lease: LeaseId) {
        if let Some(polled) = self.polled.remove(&lease) {
            polled.under.end();
            polled.task.abort();
        }
        self.group.unsettled.end(lease);
    }

    /// Every shard that is held may have as many records claimed as any other.
    fn share(&mut self) {
        let even = self.prefetch / self.polled.len().max(1);
        let even = even.clamp(1, GROUP_POLL_RECORDS_MAX as usize);
        for polled in self.polled.values_mut() {
            if even > polled.share {
                polled.room.add_permits(even - polled.share);
                polled.share = even;
            } else {
                // Those that are used stay until there is another occasion.
                polled.share -= polled.room.forget_permits(polled.share - even);
            }
        }
    }

    fn ended(&mut self, lease: LeaseId, ended: Ended) {
        let Some(polled) = self.polled.get_mut(&lease) else { return };
        polled.ended = Some(ended);
        if ended == Ended::Stale {
            // Whoever deals the shards is to give it a newer one, with the next answer.
            let of = polled.of;
            self.holdings.release(of);
            self.forget(lease);
            self.share();
        }
    }

    /// Every shard that is held cannot be polled.
    fn all_failed(&self) -> bool {
        let failed = |polled: &Polled| polled.ended == Some(Ended::Failed);
        !self.polled.is_empty() && self.polled.values().all(failed)
    }

    /// Gives back what is to be given back and has nothing under way. Whether there was something.
    fn release_drained(&mut self) -> bool {
        let drained = |of: &ShardLease| {
            let polled = self.polled.get(&of.lease).is_some_and(|polled| polled.ended.is_none());
            !polled && self.group.unsettled.is_empty(of.lease)
        };
        let drained: Vec<ShardLease> = self.holdings.giving_back().filter(drained).collect();
        for of in &drained {
            self.holdings.release(*of);
            self.forget(of.lease);
        }
        if !drained.is_empty() {
            self.share();
        }
        !drained.is_empty()
    }

    /// No poll begins any more; the shards stay ours.
    fn stop(&mut self) {
        self.queue = None;
        for polled in self.polled.values() {
            polled.stop.send_replace(true);
        }
    }

    async fn fail(mut self, error: RequestError) {
        let all = self.holdings.end();
        self.carry_out(all);
        if let Some(queue) = self.queue {
            drop(queue.send(Err(PollError { shard: 0, error: Box::new(error) })).await);
        }
    }
}

async fn sleep_until(when: Option<Instant>) {
    match when {
        Some(when) => tokio::time::sleep_until(when).await,
        None => std::future::pending().await,
    }
}
