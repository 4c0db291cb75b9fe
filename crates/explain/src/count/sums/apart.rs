//! Totals that depend on which requests failed, and on when the run was disrupted.

use super::{OutcomeClass, Sums, ValueHistogram, latency_ns, of_target, targets};
use crate::count::outages::Outages;
use crate::count::while_ending;
use crate::timeline::connections::lost_streams::StreamCarriers;
use crate::timeline::periods::Periods;
use crate::timeline::{Request, Requests, Timeline};
use rolldrop_record::Phase;

/// Requests in the counted part, away from any termination and near one.
#[derive(Debug, Default)]
pub(crate) struct DisruptionSplit<'a> {
    /// Latencies of answered requests away from any termination.
    pub(crate) steady: ValueHistogram,
    /// Latencies of answered requests near a termination.
    pub(crate) disrupted: ValueHistogram,
    /// Number of successful requests away from any termination.
    pub(crate) outside_ok: u64,
    /// Number of app errors away from any termination.
    pub(crate) outside_app_errors: u64,
    /// Number of 5xx app errors away from any termination.
    pub(crate) outside_server_errors: u64,
    pub(crate) outages: Outages<'a>,
}

impl<'a> DisruptionSplit<'a> {
    fn of(failed: impl Iterator<Item = &'a Request>) -> Self {
        Self { outages: Outages::of(failed), ..Self::default() }
    }

    fn add(&mut self, class: OutcomeClass, r: &Request, latency_ns: i64, is_near: bool) {
        if r.was_answered() {
            self.outside_ok += u64::from(!is_near && class == OutcomeClass::Ok);
            self.outside_app_errors += u64::from(!is_near && class == OutcomeClass::AppError);
            self.outside_server_errors += u64::from(!is_near && while_ending::is_server_error(&r.row));
            let values = if is_near { &mut self.disrupted } else { &mut self.steady };
            values.add(latency_ns);
        }
        if class == OutcomeClass::Ok {
            self.outages.answered(r);
        }
    }

    fn merge(&mut self, other: Self) {
        self.steady.merge(&other.steady);
        self.disrupted.merge(&other.disrupted);
        self.outside_ok += other.outside_ok;
        self.outside_app_errors += other.outside_app_errors;
        self.outside_server_errors += other.outside_server_errors;
        self.outages.merge(other.outages);
    }
}

/// Requests of a whole run, away from any termination and near one.
#[derive(Debug)]
pub(super) struct Later<'a> {
    all: DisruptionSplit<'a>,
    /// Totals by target; empty if there is only one.
    targets: Vec<DisruptionSplit<'a>>,
    streams: StreamCarriers,
}

impl<'a> Later<'a> {
    /// Columns needed for the totals. None of them names the pod.
    pub(super) const COLUMNS: &'static [&'static str] = &[
        "source",
        "seq",
        "target",
        "phase",
        "scheduled_ns",
        "connect_start_ns",
        "sent_ns",
        "end_ns",
        "outcome",
        "grpc_status",
        "conn",
        "stream",
        "bytes_received",
    ];

    /// Creates empty totals.
    pub(super) fn of(timeline: &Timeline, requests: &'a Requests) -> Self {
        let of_class = |classes: &'static [OutcomeClass]| {
            let counted = requests.others.iter().filter(|r| r.row.phase == Phase::Main);
            counted.filter(move |r| classes.contains(&OutcomeClass::of(&r.row)))
        };
        let failed = || of_class(&[OutcomeClass::Dropped, OutcomeClass::AppError]);
        let of_target = |target| {
            DisruptionSplit::of(failed().filter(move |r| timeline.target_of(&r.row) == Some(target)))
        };
        Self {
            all: DisruptionSplit::of(failed()),
            targets: targets(timeline).map(of_target).collect(),
            streams: StreamCarriers::of(of_class(&[OutcomeClass::Dropped]).map(|r| &r.row)),
        }
    }

    /// Adds a request from a run that was disrupted in these periods.
    pub(super) fn add(&mut self, timeline: &Timeline, disrupted: &Periods, r: &Request) {
        self.streams.add(&r.row);
        if r.row.phase == Phase::Warmup {
            return;
        }
        let (class, latency_ns) = (OutcomeClass::of(&r.row), latency_ns(timeline, r));
        let is_near = disrupted.meet(r.row.scheduled, r.row.end);
        self.all.add(class, r, latency_ns, is_near);
        if let Some(apart) = of_target(&mut self.targets, timeline, r) {
            apart.add(class, r, latency_ns, is_near);
        }
    }

    /// Adds the totals over other requests in the run.
    pub(super) fn merge(&mut self, other: Self) {
        self.all.merge(other.all);
        self.targets.iter_mut().zip(other.targets).for_each(|(own, other)| own.merge(other));
        self.streams.merge(other.streams);
    }

    pub(super) fn put_into(self, sums: &mut Sums<'a>) {
        sums.all.apart = self.all;
        sums.targets.iter_mut().zip(self.targets).for_each(|(part, apart)| part.apart = apart);
        sums.streams = self.streams;
    }
}
