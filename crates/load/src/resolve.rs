//! Addresses of a target: a single address, or those of a name, which are used in turn and follow DNS changes.
//!
//! Names are looked up before the start, and again when the TTL of the answer has expired. The old answer remains valid
//! until a new one arrives. A failed lookup also remains valid until the next answer; until then, it is the outcome of
//! every new connection. Open connections are not affected. If one address fails, no other is tried, because that would
//! hide the failure.

mod lookup;

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures::future::join_all;
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

use super::planned_target::PlannedTarget;
use super::remote_address::{Address, Remote};
use lookup::{Lookup, LookupResult};
use rolldrop_record::event::NameAnswer;
use rolldrop_record::load::{DnsSettings, Family};
use rolldrop_record::{Clock, EventKind, Stamp};

/// Minimum time between two lookups of a name, regardless of its TTL; after a failure, the time until the next lookup.
const LEAST_INTERVAL: Duration = Duration::from_secs(1);

/// Current answer for a name: one or more addresses, or the reason why there are none.
type ResolvedAddresses = Result<Arc<[Address]>, Arc<str>>;

/// Route to a target.
#[derive(Clone, Debug)]
pub(super) enum TargetRoute {
    /// Route to a single fixed address.
    Fixed(Address),
    /// Route to the current addresses of a name.
    Named(watch::Receiver<ResolvedAddresses>),
}

impl TargetRoute {
    /// Returns the IP addresses and ports that are currently used for connections.
    pub(super) fn remotes(&self) -> Vec<SocketAddr> {
        let remote = |address: &Address| match address.remote {
            Remote::Tcp(remote) => Some(remote),
            Remote::Unix(_) => None,
        };
        match self {
            TargetRoute::Fixed(address) => remote(address).into_iter().collect(),
            TargetRoute::Named(answer) => {
                answer.borrow().iter().flat_map(|all| all.iter()).filter_map(remote).collect()
            }
        }
    }
}

/// Cursor that takes a target's addresses in turn.
#[derive(Debug)]
pub(super) struct AddressCursor {
    route: TargetRoute,
    next: AtomicUsize,
}

impl AddressCursor {
    /// Starts with address number `first`; each worker starts with a different one.
    pub(super) fn new(route: TargetRoute, first: usize) -> Self {
        Self { route, next: AtomicUsize::new(first) }
    }

    /// Returns the address for the next connection.
    ///
    /// # Errors
    /// Returns the reason if the name currently has no address.
    pub(super) fn next(&self) -> Result<Address, Arc<str>> {
        match &self.route {
            TargetRoute::Fixed(address) => Ok(address.clone()),
            TargetRoute::Named(answer) => {
                let addresses = answer.borrow().clone()?;
                let turn = self.next.fetch_add(1, Ordering::Relaxed);
                Ok(addresses[turn % addresses.len()].clone())
            }
        }
    }
}

/// A load's target names, which are looked up again during the load.
#[derive(Debug, Default)]
pub(super) struct FollowedNames {
    names: Vec<FollowedName>,
    settings: DnsSettings,
}

/// A name that resolves to addresses.
#[derive(Debug)]
pub(super) struct FollowedName {
    host: String,
    port: u16,
    /// Address family to use; other addresses are ignored.
    family: Family,
    /// Source in which the name was found.
    source: lookup::NameSource,
    answer: watch::Sender<ResolvedAddresses>,
    /// TTL of the answer, if it has one.
    ttl: Option<Duration>,
    /// Time of the next lookup; `None` if there is none.
    due: Option<Instant>,
}

impl FollowedNames {
    /// Looks up the names of the targets. Returns the route to each target.
    ///
    /// # Errors
    /// Returns an error with the name that has no address, and the reason.
    pub(super) async fn look_up(
        settings: &DnsSettings,
        targets: &[PlannedTarget],
    ) -> Result<(Self, Vec<TargetRoute>), (String, String)> {
        let mut names = Vec::<FollowedName>::new();
        let mut routes = Vec::new();
        let mut lookup = None;
        for target in targets {
            if let Ok(address) = target.host.parse::<IpAddr>() {
                routes.push(TargetRoute::Fixed(SocketAddr::new(address, target.port).into()));
                continue;
            }
            let is_it = |name: &&FollowedName| name.host == target.host && name.port == target.port;
            if let Some(name) = names.iter().find(is_it) {
                routes.push(TargetRoute::Named(name.answer.subscribe()));
                continue;
            }
            let lookup = lookup.get_or_insert_with(|| Lookup::new(settings));
            let first = lookup.first(&target.host).await;
            let (source, found) = first.map_err(|why| (target.host.clone(), why))?;
            let mut name = FollowedName {
                host: target.host.clone(),
                port: target.port,
                family: settings.family,
                source,
                answer: watch::channel(Err("not looked up".into())).0,
                ttl: None,
                due: None,
            };
            name.take(Ok(found)).map_err(|why| (target.host.clone(), why.to_string()))?;
            routes.push(TargetRoute::Named(name.answer.subscribe()));
            names.push(name);
        }
        Ok((Self { names, settings: settings.clone() }, routes))
    }

    /// Returns true if there are no names to follow.
    pub(super) fn is_empty(&self) -> bool {
        self.names.is_empty()
    }

    /// Returns the names that have addresses of both families, with one address of each: first IPv4, then IPv6.
    pub(super) fn of_both_families(&mut self) -> impl Iterator<Item = (&mut FollowedName, Address, Address)> {
        self.names.iter_mut().filter_map(|name| {
            let addresses = name.answer.borrow().clone().ok()?;
            let of = |family: Family| addresses.iter().find(|address| address.is_of(family)).cloned();
            let (v4, v6) = (of(Family::Ipv4)?, of(Family::Ipv6)?);
            Some((name, v4, v6))
        })
    }

    /// Looks the names up repeatedly until `stop`. Reports the initial addresses and every change to `changed`.
    pub(super) async fn follow(
        self,
        clock: Clock,
        stop: CancellationToken,
        changed: impl Fn(Stamp, EventKind),
    ) {
        let Self { names, settings } = self;
        let lookup = Lookup::new(&settings);
        for name in &names {
            changed(clock.now(), name.event());
        }
        let (lookup, changed) = (&lookup, &changed);
        let follow = |mut name: FollowedName| async move {
            while let Some(due) = name.due {
                sleep_until(due).await;
                let found = lookup.again(&name.host, name.source).await;
                let before = name.answer.borrow().clone();
                let _ = name.take(found);
                if *name.answer.borrow() != before {
                    changed(clock.now(), name.event());
                }
            }
        };
        stop.run_until_cancelled(join_all(names.into_iter().map(follow))).await;
    }
}

impl FollowedName {
    /// Restricts the name to this address family, because the other family's address, `silent`, does not respond.
    /// Returns a message that says so.
    pub(super) fn use_only(&mut self, family: Family, silent: &Address) -> String {
        self.family = family;
        self.answer.send_modify(|answer| {
            if let Ok(addresses) = answer {
                *addresses = addresses.iter().filter(|address| address.is_of(family)).cloned().collect();
            }
        });
        format!(
            "using only the {1} addresses of {0}, because {2} does not answer (choose with --ipv4 or --ipv6)",
            self.host,
            family.label(),
            silent.text,
        )
    }

    /// Stores the result of a lookup.
    fn take(&mut self, found: Result<LookupResult, String>) -> ResolvedAddresses {
        let now = Instant::now();
        let (answer, ttl, due) = match found {
            Ok(found) => {
                let addresses = found.addresses.into_iter().filter(|address| self.family.has(*address));
                let addresses: Arc<[Address]> =
                    addresses.map(|address| SocketAddr::new(address, self.port).into()).collect();
                let answer: ResolvedAddresses =
                    if addresses.is_empty() { Err("no_address".into()) } else { Ok(addresses) };
                let interval = found.ttl.map(|ttl| ttl.max(LEAST_INTERVAL));
                (answer, found.ttl, interval.map(|interval| now + interval))
            }
            Err(why) => (Err(why.into()), None, Some(now + LEAST_INTERVAL)),
        };
        (self.ttl, self.due) = (ttl, due);
        self.answer.send_modify(|now| now.clone_from(&answer));
        answer
    }

    /// Returns an event with the current addresses.
    fn event(&self) -> EventKind {
        let answer = self.answer.borrow();
        let addresses = answer.iter().flat_map(|all| all.iter());
        EventKind::NameAnswer(NameAnswer {
            name: self.host.clone(),
            addresses: addresses.map(|address| address.text.to_string()).collect(),
            ttl_s: self.ttl.map(|ttl| ttl.as_secs_f64().round()),
            error: answer.as_ref().err().map(ToString::to_string),
        })
    }
}
