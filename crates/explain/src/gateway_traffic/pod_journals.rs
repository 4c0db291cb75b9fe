//! Journals of our own sidecars: the requests that reached a pod, as its sidecar recorded them.
//!
//! A journal counts only if no gateway's log names the pod's address, because each request would otherwise count twice.
//! A sidecar sees no requests that arrive after its end, and does not know all of its clients. So its counts are lower
//! bounds, and its windows have no upper bound.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;

use super::kept_attempts::{Consumer, Upstream};
use super::known_services::ServiceNumber;
use super::served_requests::logged_request;
use super::{GatewayTraffic, INTERRUPTED, clock_in, overlaps};
use crate::model::{LogGap, SIDECAR_ENDED, TerminationTraffic, TrafficWitness};
use crate::timeline::TimeSpan;
use rolldrop_record::{ClockOffset, ServedEnd, ServedKey, ServedRow, Stamp};

/// Reason for a gap.
const NO_CLOCK: &str = "clock not measured";
/// Maximum number of open responses to keep for one sidecar: as many as it tracks by default.
const MOST_OPEN: usize = 65_536;

/// Journals of the sidecars in pods that are being deleted, or are gone.
#[derive(Debug, Default)]
pub(super) struct PodJournals(Vec<PodJournal>);

/// Journal of one sidecar.
#[derive(Debug)]
pub(super) struct PodJournal {
    log: Arc<str>,
    /// UID of the pod.
    uid: String,
    /// Workload whose sidecars are read.
    source: String,
    /// Offset of the sidecar's clock; `None` until it is measured.
    clock: Option<ClockOffset>,
    /// Start of the earliest request, on the sidecar's clock.
    first: Option<Stamp>,
    /// Responses that are not known to have ended.
    open: HashMap<ServedKey, ServedRow>,
    gaps: Vec<LogGap>,
    ended: Option<Stamp>,
}

impl PodJournals {
    fn of(&self, uid: &str) -> Vec<&PodJournal> {
        self.0.iter().filter(|journal| journal.uid == uid).collect()
    }

    pub(super) fn all(&self) -> Vec<&PodJournal> {
        self.0.iter().collect()
    }

    /// Keeps only the journals of these pods.
    pub(super) fn retain(&mut self, is_kept: impl Fn(&str) -> bool) {
        self.0.retain(|journal| is_kept(&journal.uid));
    }
}

impl PodJournal {
    /// Returns the name of the pod's consumer.
    pub(super) fn consumer(&self) -> String {
        format!("clients of {}", self.source)
    }

    /// Returns the measured clock offset of a log if it is one of these journals; otherwise `None`.
    pub(super) fn clock_among(journals: &[&Self], log: &str) -> Option<ClockOffset> {
        journals.iter().find(|journal| *journal.log == *log)?.clock
    }

    /// Returns the time of the first request on the watch's clock.
    fn first(&self) -> Option<Stamp> {
        Some(self.first?.shifted_ns(-self.clock?.offset_ns))
    }
}

impl GatewayTraffic {
    /// Adds the journal of the sidecar in the pod with this UID, if it is new. Returns false if the journal already
    /// belongs to another source.
    pub fn add_journal(&mut self, log: &Arc<str>, uid: &str, source: &str) -> bool {
        if let Some(known) = self.journal_mut(uid, log) {
            return known.source == source;
        }
        self.journals.0.push(PodJournal {
            log: Arc::clone(log),
            uid: uid.to_owned(),
            source: source.to_owned(),
            clock: None,
            first: None,
            open: HashMap::new(),
            gaps: Vec::new(),
            ended: None,
        });
        true
    }

    fn journal_mut(&mut self, uid: &str, log: &str) -> Option<&mut PodJournal> {
        self.journals.0.iter_mut().find(|journal| journal.uid == uid && *journal.log == *log)
    }

    /// Sets the measured offset of a sidecar's clock.
    pub fn set_clock(&mut self, uid: &str, log: &str, clock: ClockOffset) {
        if let Some(journal) = self.journal_mut(uid, log) {
            journal.clock = Some(clock);
        }
    }

    /// Adds rows from a journal.
    pub fn add_served(&mut self, uid: &str, log: &str, rows: Vec<ServedRow>) {
        let address = self.pods.get(uid).and_then(|pod| pod.address);
        let journal = self.journals.0.iter_mut().find(|journal| journal.uid == uid && *journal.log == *log);
        let (Some(address), Some(journal)) = (address, journal) else { return };
        for row in rows {
            if row.ended == ServedEnd::Open {
                if journal.open.len() < MOST_OPEN {
                    journal.open.insert(row.key(), row);
                }
                continue;
            }
            journal.open.remove(&row.key());
            let request = logged_request(&row, address);
            journal.first = Some(journal.first.map_or(request.earliest, |first| first.min(request.earliest)));
            self.attempts.add(&journal.log, &request, |_| None);
        }
    }

    /// Adds a period in which rows of a journal may be missing. The gap's source is the journal.
    pub fn add_journal_gap(&mut self, uid: &str, gap: LogGap) {
        if let Some(journal) = self.journal_mut(uid, &gap.source) {
            journal.gaps.push(gap);
        }
    }

    /// Records that a sidecar has ended. The fate of its open responses remains unknown.
    pub fn end_journal(&mut self, uid: &str, log: &str, at: Stamp) {
        let address = self.pods.get(uid).and_then(|pod| pod.address);
        let journal = self.journals.0.iter_mut().find(|journal| journal.uid == uid && *journal.log == *log);
        let (Some(address), Some(journal)) = (address, journal) else { return };
        journal.ended = Some(at);
        for row in std::mem::take(&mut journal.open).into_values() {
            self.attempts.add(&journal.log, &logged_request(&row, address), |_| None);
        }
    }

    /// Returns the consumers whose logs name a pod or one of its Services. If only the pod's own sidecar shows its
    /// requests, also returns the pod's journals.
    pub(super) fn witnesses(
        &self,
        uid: &str,
        address: IpAddr,
        services: &[ServiceNumber],
    ) -> (Vec<Consumer>, Vec<&PodJournal>) {
        let journals = self.journals.of(uid);
        // Another pod may have had the address before.
        let first = self.pods.get(uid).and_then(|pod| pod.events.first()).map(|(at, _)| *at);
        let is_since = |log: &Arc<str>, last: Stamp| {
            let ClockOffset { offset_ns, uncertainty_ns } = clock_in(&self.clocks, &journals, log);
            first.is_none_or(|first| last.shifted_ns(uncertainty_ns.saturating_sub(offset_ns)) >= first)
        };
        let all = self.attempts.consumers_of(address, is_since, services);
        let log = |consumer: &Consumer| &**self.attempts.log_of(*consumer);
        let is_gateway = |consumer: &Consumer| !self.journals.0.iter().any(|of| *of.log == *log(consumer));
        let (gateways, sidecars): (Vec<_>, Vec<_>) = all.into_iter().partition(is_gateway);
        if !gateways.is_empty() {
            return (gateways, Vec::new());
        }
        let is_own = |consumer: &Consumer| PodJournal::clock_among(&journals, log(consumer)).is_some();
        (sidecars.into_iter().filter(is_own).collect(), journals)
    }

    /// Returns the periods in which the pod with this address was ready, not being deleted, and recorded by its
    /// sidecar.
    pub(super) fn well_in_journals(
        &self,
        address: IpAddr,
        journals: &[&PodJournal],
        span: TimeSpan,
    ) -> Vec<(Upstream, TimeSpan)> {
        let Some(first) = journals.iter().filter_map(|journal| journal.first()).min() else {
            return Vec::new();
        };
        let mut well = self.well_pods(TimeSpan { from: first.max(span.from), ..span });
        well.retain(|(of, _)| *of == Upstream::Pod(address));
        well
    }
}

/// Completes a pod's traffic from its journals. `span` is the period, from t0 on, that was searched for requests.
pub(super) fn limit_to_journals(traffic: &mut TerminationTraffic, journals: &[&PodJournal], span: TimeSpan) {
    traffic.seen_by = TrafficWitness::Sidecar;
    // A connection that the sidecar could not inspect may have carried a response that was cut.
    let may_hide_cuts = traffic.not_observable > 0;
    traffic.streams_cut = traffic.streams_cut.and_then(|cut| cut.unless_hidden(may_hide_cuts));
    traffic.consumers.seen = journals.iter().map(|journal| journal.source.clone()).collect();
    traffic.consumers.with_gaps.clone_from(&traffic.consumers.seen);
    let gap = |journal: &PodJournal, from_ns: Stamp, why: &str| LogGap {
        source: journal.log.to_string(),
        from_ns,
        to_ns: Some(span.until.max(from_ns)),
        why: Some(why.to_owned()),
    };
    for journal in journals {
        traffic.gaps.extend(journal.gaps.iter().filter(|gap| overlaps(gap, span)).cloned());
        traffic.gaps.extend(journal.clock.is_none().then(|| gap(journal, span.from, NO_CLOCK)));
    }
    let Some(last) = journals.last() else { return };
    traffic.gaps.push(match last.ended {
        Some(ended) => gap(last, ended, SIDECAR_ENDED),
        None => gap(last, span.from, INTERRUPTED),
    });
    for window in &mut traffic.windows {
        (window.upper_s, window.upper_basis, window.censored, window.censored_reason) = Default::default();
    }
}
