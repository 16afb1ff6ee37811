//! The lanes from the admin thread to the cores. Scope: per process, on the admin thread.
//! Owns: what could not be handed over yet.
//! Invariants: of each kind only the newest snapshot waits, so a slow core costs one of each; nothing is lost; orders about
//! logs come in order, and before routes that are sent after them; an order
//! to drain or stop comes after every snapshot that was sent before it.
//! Not here: what is in a snapshot.

use std::collections::VecDeque;
use std::sync::Arc;

use felix_runtime::mailbox::{LaneError, LaneSender};
use felix_wire::id::CoreId;

use super::storage::CarriesOrders;
use crate::snapshot::{Keys, LogOrder, Routes, ToCore};
use crate::store::VolumeStart;

/// Slots of the lane to a core: a few of each kind; more would only be replaced by newer ones.
pub const LANE_SLOTS: u32 = 16;

/// What a core is told to do with its life; a later one includes the earlier.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Order {
    Drain,
    Stop,
}

struct Link {
    lane: LaneSender<ToCore>,
    tls: Option<Arc<rustls::ServerConfig>>,
    keys: Option<Arc<Keys>>,
    routes: Option<Arc<Routes>>,
    volumes: Option<Vec<VolumeStart>>,
    /// About logs, in order; none is replaced.
    logs: VecDeque<LogOrder>,
    order: Option<Order>,
    /// The core's end is gone.
    closed: bool,
}

/// The lanes to all cores, in core order.
pub struct Links {
    links: Vec<Link>,
}

impl Links {
    /// Over these lanes.
    pub fn new(lanes: Vec<LaneSender<ToCore>>) -> Links {
        let link = |lane| Link {
            lane,
            tls: None,
            keys: None,
            routes: None,
            volumes: None,
            logs: VecDeque::new(),
            order: None,
            closed: false,
        };
        Links { links: lanes.into_iter().map(link).collect() }
    }

    /// New routes for every core.
    pub fn routes(&mut self, routes: &Arc<Routes>) {
        self.each(|link| link.routes = Some(Arc::clone(routes)));
    }

    /// What each core is to open its log engines with, in core order.
    pub fn volumes(&mut self, volumes: Vec<Vec<VolumeStart>>) {
        for (link, volumes) in self.links.iter_mut().zip(volumes) {
            link.volumes = Some(volumes);
            link.flush();
        }
    }

    /// New keys for every core.
    pub fn keys(&mut self, keys: &Arc<Keys>) {
        self.each(|link| link.keys = Some(Arc::clone(keys)));
    }

    /// A new certificate for every core.
    pub fn tls(&mut self, tls: &Arc<rustls::ServerConfig>) {
        self.each(|link| link.tls = Some(Arc::clone(tls)));
    }

    /// Every core is to settle and close.
    pub fn drain(&mut self) {
        self.each(|link| link.order = link.order.max(Some(Order::Drain)));
    }

    /// Every core is to end at once.
    pub fn stop(&mut self) {
        self.each(|link| link.order = Some(Order::Stop));
    }

    /// Whether something still waits for room: `flush` again soon.
    pub fn is_waiting(&self) -> bool {
        self.links.iter().any(|link| !link.is_empty())
    }

    /// Whether some core has ended.
    pub fn any_closed(&self) -> bool {
        self.links.iter().any(|link| link.closed)
    }

    fn each(&mut self, change: impl Fn(&mut Link)) {
        for link in self.links.iter_mut().filter(|link| !link.closed) {
            change(link);
            link.flush();
        }
    }

    /// Hands over what waits, as far as there is room.
    pub fn flush(&mut self) {
        for link in &mut self.links {
            link.flush();
        }
    }
}

impl CarriesOrders for Links {
    fn order(&mut self, core: CoreId, order: LogOrder) {
        if let Some(link) = self.links.get_mut(usize::from(core.0)).filter(|link| !link.closed) {
            link.logs.push_back(order);
            link.flush();
        }
    }
}

impl Link {
    fn is_empty(&self) -> bool {
        let snapshots = self.tls.is_none() && self.keys.is_none() && self.routes.is_none();
        snapshots && self.volumes.is_none() && self.logs.is_empty() && self.order.is_none()
    }

    fn flush(&mut self) {
        while let Some(message) = self.take_next() {
            match self.lane.try_send(message) {
                Ok(()) => {}
                Err(LaneError::Full(message)) => {
                    self.put_back(message);
                    return;
                }
                Err(LaneError::Closed(_)) => {
                    self.closed = true;
                    (self.tls, self.keys, self.routes, self.order) = (None, None, None, None);
                    self.volumes = None;
                    self.logs.clear();
                    return;
                }
            }
        }
    }

    fn take_next(&mut self) -> Option<ToCore> {
        if let Some(tls) = self.tls.take() {
            return Some(ToCore::Tls(tls));
        }
        if let Some(keys) = self.keys.take() {
            return Some(ToCore::Keys(keys));
        }
        if let Some(volumes) = self.volumes.take() {
            return Some(ToCore::Volumes(volumes));
        }
        if let Some(order) = self.logs.pop_front() {
            return Some(ToCore::Log(order));
        }
        if let Some(routes) = self.routes.take() {
            return Some(ToCore::Routes(routes));
        }
        self.order.take().map(|order| match order {
            Order::Drain => ToCore::Drain,
            Order::Stop => ToCore::Stop,
        })
    }

    fn put_back(&mut self, message: ToCore) {
        match message {
            ToCore::Tls(tls) => self.tls = Some(tls),
            ToCore::Keys(keys) => self.keys = Some(keys),
            ToCore::Routes(routes) => self.routes = Some(routes),
            ToCore::Volumes(volumes) => self.volumes = Some(volumes),
            ToCore::Log(order) => self.logs.push_front(order),
            ToCore::Drain => self.order = Some(Order::Drain),
            ToCore::Stop => self.order = Some(Order::Stop),
        }
    }
}

#[cfg(test)]
mod tests {
    use felix_runtime::mailbox::lane_to_core;
    use felix_runtime::waker::CoreWaker;

    use super::*;

    fn routes(version: u64) -> Arc<Routes> {
        Arc::new(Routes::new(version, [], []))
    }

    #[test]
    fn a_full_lane_keeps_only_the_newest_of_each_kind_and_loses_no_order() {
        let (to, mut from) = lane_to_core(2, &CoreWaker::new());
        let mut links = Links::new(vec![to]);
        for version in 1..=5 {
            links.routes(&routes(version));
        }
        links.keys(&Arc::new(Keys::default()));
        links.drain();
        assert!(links.is_waiting());
        let mut seen = Vec::new();
        for _ in 0..10 {
            while let Some(message) = from.try_recv() {
                seen.push(match message {
                    ToCore::Routes(routes) => format!("routes {}", routes.version),
                    ToCore::Keys(_) => "keys".to_owned(),
                    ToCore::Drain => "drain".to_owned(),
                    ToCore::Tls(_) | ToCore::Stop | ToCore::Volumes(_) | ToCore::Log(_) => "other".to_owned(),
                });
            }
            links.flush();
        }
        assert_eq!(seen, ["routes 1", "routes 2", "keys", "routes 5", "drain"]);
        assert!(!links.is_waiting() && !links.any_closed());
    }

    #[test]
    fn stopping_replaces_a_drain_that_was_not_handed_over() {
        let (to, mut from) = lane_to_core(1, &CoreWaker::new());
        let mut links = Links::new(vec![to]);
        links.routes(&routes(1));
        links.drain();
        links.stop();
        links.drain();
        assert!(matches!(from.try_recv(), Some(ToCore::Routes(_))));
        links.flush();
        assert!(matches!(from.try_recv(), Some(ToCore::Stop)));
        assert!(from.try_recv().is_none());
    }

    #[test]
    fn a_core_that_ended_is_noticed_and_holds_nothing_back() {
        let (to, from) = lane_to_core(1, &CoreWaker::new());
        let mut links = Links::new(vec![to]);
        drop(from);
        links.routes(&routes(1));
        assert!(links.any_closed() && !links.is_waiting());
    }
}
