//! Checks that the record is complete and consistent (request numbers, totals, stamp order, clocks), and finds its
//! gaps.
//!
//! The analysis treats a run with missing parts as partial, and one with contradictions as invalid. Records in the
//! first format contain no totals and no checksums, so they are not judged; their gaps are still found, as far as
//! request numbers show them.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;
use std::sync::Arc;

use foldhash::HashMap;

use super::clocks::Clocks;
use super::span::TimeSpan;
use super::stretch::Stretch;
use crate::model::account::{Missing, RecordContradiction};
use crate::timeline::by_name::ValuesByRun;
use rolldrop_record::run_info::{Role, Source};
use rolldrop_record::{
    ClockOffset, Event, EventKind, Outcome, Phase, RequestRow, RunInfo, ServedEnd, ServedRow, Stamp,
};

/// Highest request number: a thousand per second for twelve days.
pub(super) const HIGHEST_NUMBER: u64 = 1 << 30;
/// Number below which every request is compared with the proxies' rows. Above it, one in [`ONE_IN`] is compared, which
/// is enough to find a wrong clock.
const ALL_BELOW: u64 = 4096;
/// A prime, so that no pattern of targets or pods coincides with it.
const ONE_IN: u64 = 61;
/// Allowed difference between two clocks' stamps beyond the clocks' uncertainty, because a thread may wait for a
/// processor between an event and its stamp.
const STAMPING_NS: i64 = 20_000_000;
/// Share of contradicting requests above which the clocks are at fault, rather than single threads.
const DISAGREE: f64 = 0.01;
/// Maximum number of gaps per source; a source that exceeds it counts as having a single large gap.
const MOST_HOLES: usize = 1000;

/// Results of checking the record.
#[derive(Clone, Debug, Default)]
pub struct Integrity {
    /// Missing parts of the record.
    pub missing: Vec<Missing>,
    /// Contradictions in the record.
    pub contradictions: Vec<RecordContradiction>,
    /// Periods in which requests are missing.
    pub holes: Vec<Hole>,
}

/// Period with scheduled requests that have no row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hole {
    /// Load source whose requests are missing.
    pub source: String,
    /// Intended send time of the last request before the gap, or the start of the load.
    pub from: Stamp,
    /// Intended send time of the first request after the gap, or the end of the load.
    pub to: Stamp,
    /// Minimum number of missing requests.
    pub requests: u64,
}

/// Data collected in the first pass over all rows.
#[derive(Debug, Default)]
pub(super) struct RowIntegrity {
    sources: ValuesByRun<SourceIntegrity>,
    served: HashMap<Arc<str>, OfProxy>,
    /// True if requests are kept for comparison with the proxies' rows.
    compares: bool,
}

/// Rows of one load source.
#[derive(Debug, Default)]
struct SourceIntegrity {
    numbers: NumberSet,
    warmup: u64,
    main: u64,
    twice: CountAndFirst,
    disordered: CountAndFirst,
    /// Requests to compare: start, end, and clock uncertainty.
    compared: HashMap<u64, (Stamp, Stamp, i64)>,
}

/// Rows of one proxy.
#[derive(Debug, Default)]
struct OfProxy {
    rows: u64,
    disordered: CountAndFirst,
    compared: u64,
    /// Number of rows whose stamps claim that the proxy read a request before it was sent, or after it was answered.
    impossible: u64,
    /// Largest time by which such a row is too early or too late, in nanoseconds.
    worst_ns: i64,
}

/// Number of requests, and the number of the first one.
#[derive(Debug, Default)]
struct CountAndFirst {
    n: u64,
    first: Option<u64>,
}

impl CountAndFirst {
    fn add(&mut self, number: u64) {
        self.n += 1;
        self.first.get_or_insert(number);
    }

    fn merge(&mut self, later: Self) {
        self.n += later.n;
        self.first = self.first.or(later.first);
    }
}

/// Set of numbers, stored as one bit each.
#[derive(Debug, Default)]
struct NumberSet {
    words: Stretch<u64>,
    n: u64,
}

impl NumberSet {
    /// Adds a number; returns true if it is new.
    fn insert(&mut self, number: u64) -> bool {
        let Ok(word) = usize::try_from(number / 64) else { return true };
        let word = self.words.at_mut(word);
        let bit = 1 << (number % 64);
        let is_new = *word & bit == 0;
        *word |= bit;
        self.n += u64::from(is_new);
        is_new
    }

    /// Adds another set; returns how many of its numbers were already in this one, and the first of them.
    fn merge(&mut self, others: &Self) -> CountAndFirst {
        let mut twice = CountAndFirst::default();
        for (word, other) in others.words.iter() {
            let own = self.words.at_mut(word);
            let both = *own & other;
            if both != 0 {
                let first = Some(word as u64 * 64 + u64::from(both.trailing_zeros()));
                twice.merge(CountAndFirst { n: u64::from(both.count_ones()), first });
            }
            *own |= other;
        }
        self.n += others.n - twice.n;
        twice
    }

    fn has(&self, number: u64) -> bool {
        let word = usize::try_from(number / 64).ok().and_then(|word| self.words.at(word));
        word.is_some_and(|word| word & (1 << (number % 64)) != 0)
    }

    /// Returns the ranges within `first..end` that are missing from the set.
    fn missing(&self, first: u64, end: u64) -> Vec<RangeInclusive<u64>> {
        let mut ranges = Vec::new();
        let mut begun = None;
        for number in first..end {
            match (self.has(number), begun) {
                (false, None) => begun = Some(number),
                (true, Some(first)) => {
                    ranges.push(first..=number - 1);
                    begun = None;
                }
                _ => {}
            }
        }
        ranges.extend(begun.map(|first| first..=end - 1));
        ranges
    }

    /// Returns the highest number plus one.
    fn end(&self) -> u64 {
        let last = self.words.iter().rfind(|(_, bits)| **bits != 0);
        last.map_or(0, |(word, bits)| word as u64 * 64 + u64::from(u64::BITS - bits.leading_zeros()))
    }

    /// Returns the lowest number; 0 if there is none.
    fn begin(&self) -> u64 {
        let first = self.words.iter().find(|(_, bits)| **bits != 0);
        first.map_or(0, |(word, bits)| word as u64 * 64 + u64::from(bits.trailing_zeros()))
    }
}

impl SourceIntegrity {
    fn merge(&mut self, later: Self) {
        self.twice.merge(self.numbers.merge(&later.numbers));
        self.twice.merge(later.twice);
        self.warmup += later.warmup;
        self.main += later.main;
        self.disordered.merge(later.disordered);
        self.compared.extend(later.compared);
    }
}

impl RowIntegrity {
    /// Creates an empty collection; `has_served` is true if the run has proxy rows.
    pub(super) fn new(has_served: bool) -> Self {
        Self { compares: has_served, ..Self::default() }
    }

    /// Adds the requests of later rows.
    pub(super) fn merge(&mut self, later: Self) {
        for (source, of) in later.sources {
            self.sources.get(&source).merge(of);
        }
    }

    /// Adds a request, on the coordinator's clock.
    pub(super) fn add(&mut self, row: &RequestRow, uncertainty_ns: i64) {
        let of = self.sources.get(&row.source);
        match row.phase {
            Phase::Warmup => of.warmup += 1,
            Phase::Main => of.main += 1,
        }
        if row.seq >= HIGHEST_NUMBER || !of.numbers.insert(row.seq) {
            of.twice.add(row.seq);
        }
        if !is_ordered(row) {
            of.disordered.add(row.seq);
        }
        if self.compares && (row.seq < ALL_BELOW || row.seq.is_multiple_of(ONE_IN)) {
            let begun = row.actually_sent().unwrap_or(row.scheduled);
            // A request that the client gave up on may be read later.
            let end = if row.outcome == Outcome::Ok { row.end } else { Stamp::from_unix_ns(i64::MAX) };
            of.compared.insert(row.seq, (begun, end, uncertainty_ns));
        }
    }

    /// Adds a proxy's row, on the proxy's own clock. An open row is not among those that the proxy counts.
    pub(super) fn add_served(&mut self, row: &ServedRow) {
        if row.ended == ServedEnd::Open {
            return;
        }
        let of = match self.served.get_mut(&row.source) {
            Some(of) => of,
            None => self.served.entry(Arc::clone(&row.source)).or_default(),
        };
        of.rows += 1;
        if row.accepted > row.end || row.head.is_some_and(|head| head > row.end || head < row.accepted) {
            of.disordered.add(of.rows - 1);
        }
    }

    /// Compares a proxy's row, already added, with the run's request of the same id.
    pub(super) fn compare(&mut self, row: &ServedRow, clocks: &Clocks) {
        let Some((id, head)) = row.request.as_ref().zip(row.head) else { return };
        let Some(of) = self.served.get_mut(&row.source) else { return };
        let request = self.sources.find(id.source()).and_then(|of| of.compared.get(&id.seq));
        let Some((begun, end, uncertainty_ns)) = request else { return };
        let ClockOffset { offset_ns, uncertainty_ns: own_ns } = clocks.offset(&row.source, head);
        let head = head.shifted_ns(-offset_ns);
        let allowed_ns = uncertainty_ns.saturating_add(own_ns).saturating_add(STAMPING_NS);
        of.compared += 1;
        let beyond_ns = begun.ns_since(head).max(head.ns_since(*end));
        if beyond_ns > allowed_ns {
            of.impossible += 1;
            of.worst_ns = of.worst_ns.max(beyond_ns);
        }
    }

    /// Returns the numbers of missing requests, by source. `scheduled` holds the totals of the sources that reported
    /// them. It is `None` for rows from a part of the run, where only gaps between two requests count as missing.
    fn gaps(&self, scheduled: Option<&Scheduled<'_>>) -> BTreeMap<Arc<str>, Vec<RangeInclusive<u64>>> {
        let gaps = self.sources.iter().filter_map(|(source, of)| {
            let total = scheduled.and_then(|scheduled| scheduled.get(&**source));
            let total = total.map_or(0, |(warmup, main)| warmup.saturating_add(*main));
            let first = if scheduled.is_some() { 0 } else { of.numbers.begin() };
            let end = of.numbers.end().max(total).min(HIGHEST_NUMBER);
            if of.numbers.n == end - first {
                return None;
            }
            let mut gaps = of.numbers.missing(first, end);
            if let (true, Some(first), Some(last)) = (gaps.len() > MOST_HOLES, gaps.first(), gaps.last()) {
                gaps = vec![*first.start()..=*last.end()];
            }
            Some((Arc::clone(source), gaps))
        });
        // Some sources have no rows at all.
        let without =
            scheduled.into_iter().flatten().filter(|(source, _)| self.sources.find(source).is_none());
        let without = without.filter_map(|(source, (warmup, main))| {
            let last = warmup.saturating_add(*main).checked_sub(1)?;
            Some((Arc::from(*source), vec![0..=last]))
        });
        gaps.chain(without).collect()
    }

    /// Returns the faults in the record, apart from its gaps.
    fn judge(
        &self,
        (info, events, clocks): (&RunInfo, &[Event], &Clocks),
        scheduled: &Scheduled<'_>,
    ) -> Integrity {
        let mut found = Integrity::default();
        // A run that did not complete reports that itself, and so does a look at a run in progress.
        if info.complete && info.ended.is_some() {
            found.missing.extend(missing_events(info, events, scheduled));
        }
        let lossy: BTreeSet<&str> =
            info.sources.iter().filter(|of| has_lost(of)).map(|of| &*of.name).collect();
        for (&source, &(warmup, main)) in scheduled.iter().filter(|(of, _)| !lossy.contains(*of)) {
            let of = self.sources.find(source);
            for (phase, scheduled, rows) in [
                (Phase::Warmup, warmup, of.map_or(0, |of| of.warmup)),
                (Phase::Main, main, of.map_or(0, |of| of.main)),
            ] {
                let source = source.to_owned();
                match rows.cmp(&scheduled) {
                    Ordering::Less => {
                        found.missing.push(Missing::Requests { source, phase, scheduled, rows });
                    }
                    Ordering::Equal => {}
                    Ordering::Greater => {
                        found.contradictions.push(RecordContradiction::Requests {
                            source,
                            phase,
                            scheduled,
                            rows,
                        });
                    }
                }
            }
        }
        let sources: BTreeMap<&Arc<str>, &SourceIntegrity> = self.sources.iter().collect();
        for (source, of) in sources {
            if let CountAndFirst { n: requests, first: Some(first) } = of.twice {
                let source = Arc::clone(source);
                found.contradictions.push(RecordContradiction::Twice { source, requests, first });
            }
            if let CountAndFirst { n: rows, first: Some(first) } = of.disordered {
                let source = Arc::clone(source);
                found.contradictions.push(RecordContradiction::Disordered { source, rows, first });
            }
        }
        self.judge_proxies(info, &mut found);
        found
            .contradictions
            .extend(clocks.contradictory().map(|of| RecordContradiction::Clock(of.to_owned())));
        found
    }

    fn judge_proxies(&self, info: &RunInfo, found: &mut Integrity) {
        let none = OfProxy::default();
        for Source { name, rows, .. } in info.sources.iter().filter(|source| source.role == Role::Proxy) {
            let of = self.served.get(name.as_str()).unwrap_or(&none);
            let Some(received) = rows.map(|rows| rows.received) else { continue };
            let (proxy, rows) = (name.clone(), of.rows);
            match rows.cmp(&received) {
                Ordering::Less => found.missing.push(Missing::Served { proxy, received, rows }),
                Ordering::Equal => {}
                Ordering::Greater => {
                    found.contradictions.push(RecordContradiction::Served { proxy, received, rows });
                }
            }
        }
        let proxies: BTreeMap<&Arc<str>, &OfProxy> = self.served.iter().collect();
        for (proxy, of) in proxies {
            let proxy = || Arc::clone(proxy);
            if of.disordered.n > 0 {
                let rows = of.disordered.n;
                found.contradictions.push(RecordContradiction::DisorderedServed { proxy: proxy(), rows });
            }
            if of.impossible as f64 > DISAGREE * of.compared as f64 {
                found.contradictions.push(RecordContradiction::Impossible {
                    proxy: proxy(),
                    impossible: of.impossible,
                    compared: of.compared,
                    worst_s: of.worst_ns as f64 / 1e9,
                });
            }
        }
    }
}

/// Returns true if a source hands over its rows and not all of them arrived; its own events report the missing ones.
fn has_lost(source: &Source) -> bool {
    source.rows.is_some_and(|rows| rows.recorded != Some(rows.received))
}

/// Returns the missing events that every run must write. Without them, other missing parts go unnoticed.
fn missing_events(info: &RunInfo, events: &[Event], scheduled: &Scheduled<'_>) -> Vec<Missing> {
    let mut missing = Vec::new();
    let has = |is: fn(&EventKind) -> bool| events.iter().any(|event| is(&event.kind));
    if !has(|kind| matches!(kind, EventKind::LoadStarted { .. })) {
        missing.push(Missing::LoadStarted);
    }
    if !has(|kind| matches!(kind, EventKind::LoadEnded { .. })) {
        missing.push(Missing::LoadEnded);
    }
    let sampled: BTreeSet<&str> = events
        .iter()
        .filter_map(|event| match &event.kind {
            EventKind::ClockSample { of, .. } => Some(of.as_str()),
            _ => None,
        })
        .collect();
    for source in &info.sources {
        let name = source.name.as_str();
        if source.role == Role::Load && !has_lost(source) && !scheduled.contains_key(name) {
            missing.push(Missing::Scheduled(name.to_owned()));
        }
        // Clocks within one process need no comparison, and their offset has no uncertainty.
        if source.clock_uncertainty_ns.is_some_and(|ns| ns > 0) && !sampled.contains(name) {
            missing.push(Missing::ClockSample(name.to_owned()));
        }
    }
    missing
}

/// Scheduled requests in the warm-up and in the counted part, as reported by each load source.
type Scheduled<'a> = BTreeMap<&'a str, (u64, u64)>;

fn scheduled(events: &[Event]) -> Scheduled<'_> {
    let totals = events.iter().filter_map(|event| match &event.kind {
        EventKind::LoadScheduled { of, warmup, main } => Some((of.as_str(), (*warmup, *main))),
        _ => None,
    });
    totals.collect()
}

/// Returns true if a request's stamps are in a possible order. A response may begin before the whole request is
/// written.
fn is_ordered(row: &RequestRow) -> bool {
    let connecting = [row.connect_start, row.connected, row.tls, row.sent];
    let connecting = connecting.into_iter().flatten().chain([row.end]);
    let is_opened = connecting.is_sorted();
    is_opened && row.head.is_none_or(|head| head <= row.end)
}

/// Checks the record; a part of a record is only checked for missing requests. If some are missing, `stamps` reads all
/// requests once more for their intended send times.
pub(super) fn look<E>(
    (rows, span): (&RowIntegrity, TimeSpan),
    (info, events, clocks): (&RunInfo, &[Event], &Clocks),
    (began, ended): (Stamp, Stamp),
    stamps: impl FnOnce(&mut (dyn FnMut(&RequestRow) + Send)) -> Result<(), E>,
) -> Result<Integrity, E> {
    let scheduled = scheduled(events);
    let (mut found, gaps) = match span == TimeSpan::ALL {
        true => (rows.judge((info, events, clocks), &scheduled), rows.gaps(Some(&scheduled))),
        false => (Integrity::default(), rows.gaps(None)),
    };
    if gaps.is_empty() {
        return Ok(found);
    }
    let mut beside: HashMap<Arc<str>, HashMap<u64, Option<Stamp>>> = HashMap::default();
    for (source, gaps) in &gaps {
        let neighbours = gaps.iter().flat_map(|gap| [gap.start().checked_sub(1), Some(gap.end() + 1)]);
        beside.insert(Arc::clone(source), neighbours.flatten().map(|number| (number, None)).collect());
    }
    stamps(&mut |row| {
        if let Some(at) = beside.get_mut(&row.source).and_then(|of| of.get_mut(&row.seq)) {
            *at = Some(row.scheduled);
        }
    })?;
    for (source, gaps) in gaps {
        let of = beside.remove(&source).unwrap_or_default();
        let at = |number: Option<u64>| number.and_then(|number| of.get(&number).copied().flatten());
        for gap in gaps {
            found.holes.push(Hole {
                source: source.to_string(),
                from: at(gap.start().checked_sub(1)).unwrap_or(began),
                to: at(Some(gap.end() + 1)).unwrap_or(ended),
                requests: gap.end() - gap.start() + 1,
            });
        }
    }
    found.holes.sort_by_key(|hole| (hole.from, hole.to));
    Ok(found)
}

#[cfg(test)]
mod tests;
