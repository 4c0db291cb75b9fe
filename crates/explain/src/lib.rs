//! Windows, attribution, causes, statistics and the recommendation.
//!
//! Pure: data in, data out. No clock, no I/O, no async. Each number is documented where it is computed. The modules, in
//! the order in which a run passes through them: `timeline` (events and requests on one clock; `pod_lives::t0` decides
//! when a deletion took effect, `drop_policy` which requests count as dropped), `route` (the time at which traffic to a
//! pod stopped), `attribute` (the termination and the cause of each loss), `count` (sums), `conclude` (validity,
//! findings, recommendation). `model` is the output of the crate, `math` holds the formulas.
//!
//! There are too many successful requests to hold in memory. One pass over them collects facts that only all requests
//! together show (`timeline::requests`), the arrivals at each pod, from which the windows follow
//! (`route::observations`), and the totals (`sums`). Later steps depend on all of these and read only some columns of
//! the rows: `route::facts` reads the columns needed for failures of a gateway, a source port or a kept connection, if
//! there are any, and `sums` reads the requests near a termination. If the first pass did not know enough about the
//! requests ([`Analysed::of`]), they are read again.
//!
//! One termination can be explained on its own ([`termination`]): the same passes read the same rows but hold only
//! those of a [`TimeSpan`] around it.

mod attribute;
pub mod conclude;
pub mod count;
pub mod math;
pub mod model;
mod route;
pub mod timeline;

use attribute::judged::{self, JudgedRequest};
use attribute::shares;
use attribute::solve::{Attribution, solve};
use conclude::aim::aim;
pub use conclude::recommend::MAX_COARSENESS_S;
use conclude::start_entries::starts;
use conclude::termination_entries::terminations;
use conclude::validity;
use conclude::{charting, findings, recommend};
use count::request_counts;
use count::stream_records::StreamRecord;
use count::stream_totals::StreamTotals;
use count::sums::Sums;
use count::while_ending::{self, ErrorWhileEnding};
use math::stats;
use model::account::{Account, Incomplete, Invalid, MeasuredQuantity};
pub use model::{Analysis, RunResult};
use model::{LoadResult, Mode, RequestCounts, StreamTimes, Termination, Unbounded, Verdict};
use route::facts::Facts;
use route::observations::ObservedTotals;
use route::window;
pub use timeline::TimeSpan;
pub use timeline::drop_policy::OutcomeClass;

use std::sync::Arc;

use crate::timeline::periods::Periods;
use crate::timeline::{Request, Requests, Timeline, Unread};
use rolldrop_record::parts::{PartError, Wanted};
use rolldrop_record::{RowSource, RunLog};

/// Returns how many independently ending windows are needed for the longest to cover the share `coverage` of all
/// windows at this confidence. Both arguments are in (0, 1). Source: Wilks 1941.
pub fn windows_needed(coverage: f64, confidence: f64) -> usize {
    stats::wilks_needed(coverage, confidence)
}

/// A run with its analysis.
#[derive(Debug)]
pub struct Analysed {
    /// Events of the run on one clock.
    pub timeline: Timeline,
    /// Requests of the run.
    pub requests: Requests,
    /// Conclusions about the run.
    pub analysis: Analysis,
}

impl Analysed {
    /// Analyses the records of a run.
    ///
    /// # Errors
    /// Fails if the rows cannot be read.
    pub fn of(log: RunLog, rows: impl RowSource + 'static) -> Result<Self, PartError> {
        Self::of_rows(log, Arc::new(rows))
    }

    // Not generic, so the code that reads all rows is compiled in this crate, with its optimisations.
    fn of_rows(log: RunLog, rows: Arc<dyn RowSource>) -> Result<Self, PartError> {
        let unread = Unread::of(log, TimeSpan::ALL);
        // If proxies recorded which pods answered, the pods are known only once the proxies' rows are joined with all
        // requests.
        let draft = if rows.has_served() { None } else { unread.draft() };
        let (requests, passed) = unread.read(
            rows,
            || draft.as_ref().map(Passed::new),
            |passed, r| passed.iter_mut().for_each(|passed| passed.add(r)),
            |passed, later| passed.iter_mut().zip(later).for_each(|(passed, later)| passed.merge(later)),
        )?;
        let timeline = unread.finish(draft.as_ref(), &requests)?;
        let passed = passed.filter(|passed| passed.holds(&timeline, &requests));
        let analysis = analyse(&timeline, &requests, passed)?;
        Ok(Self { timeline, requests, analysis })
    }
}

/// Explains one pod's termination from the requests in a span, as the analysis of the whole run does. Returns `None` if
/// the pod was not terminating in that span.
///
/// The span must begin some time before t0 and end some time after the pod was gone and losses had stopped: several
/// pods terminating at the same time may explain a loss, and only connections routed elsewhere show that a window was
/// over. With 10 s on both sides, every termination of the recorded runs comes out the same as in the analysis of the
/// whole run.
///
/// `rows` may cover the span or any longer time. Rows outside the span are not held: they only add to totals, such as
/// the connection rate before t0. The events may be those of the whole run, or begin with lists of the existing
/// objects. Consumers are as described in `log`; if `log` says nothing about one behind a URL, its kind is inferred
/// from the responses in the span.
///
/// `together` is the number of terminations whose upper bounds hold simultaneously, with one error probability for all
/// of them. In a run these are all terminations of one mode.
///
/// # Errors
/// Fails if the rows cannot be read.
pub fn termination(
    log: RunLog,
    rows: Arc<dyn RowSource>,
    uid: &str,
    span: TimeSpan,
    together: usize,
) -> Result<Option<Termination>, PartError> {
    let (timeline, requests) = Unread::of(log, span).build(rows)?;
    let passed = Passed::of(&timeline, &requests)?;
    let modes = window::modes(&timeline.ends);
    let alpha = vec![window::alpha(&timeline, together); modes.len()];
    let explained = Explained::of(&timeline, &requests, passed, (&modes, &alpha))?;
    Ok(explained.terminations.into_iter().find(|termination| termination.uid == uid))
}

/// Totals over requests that are not held in memory: plainly successful ones, and ones outside the span.
struct Passed<'a> {
    /// Timeline as known while the rows are read.
    timeline: &'a Timeline,
    observed: ObservedTotals<'a>,
    sums: Sums<'a>,
}

impl<'a> Passed<'a> {
    /// Computes the totals from rows that have already been read once.
    fn of(timeline: &'a Timeline, requests: &Requests) -> Result<Self, PartError> {
        requests.unheld(Wanted::All, || Self::new(timeline), Self::add, Self::merge)
    }

    fn new(timeline: &'a Timeline) -> Self {
        Self { timeline, observed: ObservedTotals::new(timeline), sums: Sums::new(timeline) }
    }

    fn add(&mut self, r: &Request) {
        self.observed.unheld(self.timeline, r);
        if self.timeline.span.has(&r.row) {
            self.sums.add(self.timeline, r.pod(), r);
        }
    }

    /// Adds the totals over later requests.
    fn merge(&mut self, later: Self) {
        self.observed.merge(later.observed);
        self.sums.merge(later.sums);
    }

    /// Returns true if the totals are still correct now that all requests are known.
    fn holds(&self, timeline: &Timeline, requests: &Requests) -> bool {
        let [then, now] = [self.timeline, timeline].map(|timeline| &timeline.info.targets);
        let balances_the_same = then.iter().zip(now).all(|(then, now)| then.balances == now.balances);
        requests.agreement.is_relied_on && balances_the_same
    }
}

/// Terminations of a run or a span, with their losses.
struct Explained<'a> {
    facts: Facts<'a>,
    /// As in [`Account::unbounded`].
    unbounded: Vec<Vec<Option<Unbounded>>>,
    disrupted: Periods,
    sums: Sums<'a>,
    errors: Vec<ErrorWhileEnding>,
    judged: Vec<JudgedRequest<'a>>,
    streams: Option<StreamTotals>,
    terminations: Vec<Termination>,
}

impl<'a> Explained<'a> {
    /// Derives the terminations from the facts. `modes` holds the mode of each termination, and `alpha` the probability
    /// that its upper bounds are too small.
    fn of(
        timeline: &'a Timeline,
        requests: &'a Requests,
        Passed { observed, sums, .. }: Passed<'a>,
        (modes, alpha): (&[Mode], &'a [f64]),
    ) -> Result<Self, PartError> {
        let facts = Facts::of(timeline, requests, alpha, observed)?;
        let Attribution { explanations, tails } = solve(&facts);
        let (windows, unbounded) = window::windows(timeline, &tails, alpha);
        let disrupted = window::disrupted(timeline, &windows);
        let sums = Sums::of(&facts, requests, &disrupted, sums)?;
        let errors = while_ending::errors(timeline, &requests.others, &explanations);
        let judged = judged::judge(&facts, explanations, &tails, &windows, sums.load());
        let mut terminations = terminations(&facts, modes, &sums, (&judged, &errors), (windows, &tails));
        let records = StreamRecord::read(requests, |r| facts.pod(r).map(Arc::clone))?;
        let gaps = StreamTimes::between_events(requests, &disrupted)?;
        let streams = StreamTotals::of(timeline, &disrupted, &records, gaps);
        let by_termination = streams.iter().flat_map(|streams| &streams.by_termination);
        for (termination, streams) in terminations.iter_mut().zip(by_termination) {
            termination.streams = Some(streams.clone());
        }
        Ok(Self { facts, unbounded, disrupted, sums, errors, judged, streams, terminations })
    }
}

/// Analyses one run. Its rows are read again if `passed` is `None`.
fn analyse<'a>(
    timeline: &'a Timeline,
    requests: &'a Requests,
    passed: Option<Passed<'a>>,
) -> Result<Analysis, PartError> {
    let passed = passed.map_or_else(|| Passed::of(timeline, requests), Ok)?;
    let modes = window::modes(&timeline.ends);
    let alpha = window::alphas(timeline, &modes);
    let Explained { facts, unbounded, disrupted, sums, errors, judged, streams, terminations } =
        Explained::of(timeline, requests, passed, (&modes, &alpha))?;
    let all: Vec<&JudgedRequest<'_>> = judged.iter().collect();
    let groups = shares::groups(timeline, &terminations, &all);
    let requests = request_counts::count(timeline, &sums.all, (&all, errors.len()), &disrupted);
    let targets = request_counts::targets(timeline, &sums, &terminations, (&all, &errors), &disrupted);
    let not_working = requests.outside_terminations.finding(&requests);

    let load = load_result(timeline, &requests, &sums);
    let latency_ms = sums.all.latencies(timeline.info.load.is_closed_loop());
    let measured = MeasuredQuantity::of(&terminations, &latency_ms.response);
    let invalid = validity::invalid(timeline, &load, &requests.not_sent_by_reason, measured, &terminations);
    let incomplete = validity::incomplete(timeline, &sums);
    let verdict = verdict(&invalid, &incomplete);
    let ground = recommend::Ground {
        timeline,
        terminations: &terminations,
        groups: &groups,
        judged: &judged,
        verdict: &verdict,
        service_s: latency_ms.service.p99 / 1e3,
    };
    let (recommendation, grounds) = recommend::recommendations(ground);
    let covering = recommendation.iter().filter_map(|r| r.covers_all_seen_seconds).max();
    let what_if = recommend::what_if(ground, covering);
    let sleeps = recommend::sleeps(ground);
    let findings = findings::findings(findings::FindingsInput {
        timeline,
        sums: &sums,
        invalid: &invalid,
        incomplete: &incomplete,
        unbounded: &unbounded,
        requests: &requests,
        judged: &judged,
        latency_ms: &latency_ms,
        terminations: &terminations,
        groups: &groups,
        recommendation: &recommendation,
        streams: streams.as_ref().map(|streams| &streams.result),
    });
    let findings = not_working.into_iter().chain(findings).collect();
    let account = Account { invalid, incomplete, unbounded, grounds, findings };
    let result = RunResult {
        schema_version: model::SCHEMA_VERSION,
        tool: timeline.info.tool.clone(),
        scenario: timeline.info.name.clone(),
        cluster: timeline.info.cluster.clone(),
        complete: account.incomplete.is_empty(),
        command: (timeline.commands.iter().find(|command| command.code != Some(0)))
            .or(timeline.commands.last())
            .map(command_result),
        findings: Vec::new(),
        verdict,
        load,
        requests,
        latency_ms,
        streams: streams.as_ref().map(|streams| streams.result.clone()),
        starts: starts(&facts, &judged),
        aim: aim(timeline),
        windows_s: recommend::summaries(&terminations),
        what_if,
        recommendation,
        terminations,
        groups,
        only_target: request_counts::only_target(&timeline.info.targets),
        targets,
        longest_outage_s: sums.all.apart.outages.longest_s(),
        checks: Vec::new(),
        looks: timeline.info.looks.clone(),
    };
    let (open_streams, steady) = streams.map(|streams| (streams.open, streams.steady)).unzip();
    let open_streams = open_streams.unwrap_or_default();
    let charts = model::ChartData { sleeps, open_streams, ..charting::charts(timeline, sums) };
    let (run, lost) = (timeline.info.run.to_string(), charting::lost(timeline, judged));
    Ok(Analysis { run, result, account, lost, charts, steady })
}

/// Returns the verdict; `report` adds the reasons.
fn verdict(invalid: &[Invalid], incomplete: &[Incomplete]) -> Verdict {
    match (invalid, incomplete) {
        ([_, ..], _) => Verdict::Invalid { why: Vec::new() },
        ([], [_, ..]) => Verdict::Partial { why: Vec::new() },
        ([], []) => Verdict::Valid,
    }
}

/// Returns the planned and the sent load.
fn load_result(timeline: &Timeline, requests: &RequestCounts, sums: &Sums<'_>) -> LoadResult {
    LoadResult {
        rate: match timeline.info.load.is_closed_loop() {
            true => requests.total as f64 / duration_s(timeline).max(f64::MIN_POSITIVE),
            false => timeline.info.load.rate,
        },
        pacing: timeline.info.load.pacing,
        duration_s: duration_s(timeline),
        scheduled: requests.total,
        not_sent: requests.not_sent,
        send_lag_us: sums.lag.send_lag(),
    }
}

/// Returns the length of the counted part in seconds: the planned length, or the time until the load was stopped.
fn duration_s(timeline: &Timeline) -> f64 {
    let (planned, lasted) = (timeline.info.load.duration_s, timeline.seconds(timeline.load_ended));
    if timeline.info.load.is_closed_loop() {
        return lasted.max(0.0);
    }
    // If the load was not stopped, its last request begins just before the planned end.
    if lasted + 1.0 < planned { lasted.max(0.0) } else { planned }
}

fn command_result(command: &crate::timeline::RunCommand) -> model::CommandResult {
    model::CommandResult {
        words: command.words.clone(),
        code: command.code,
        signal: command.signal,
        duration_s: command.ended.map(|at| at.seconds_since(command.started)),
    }
}

#[cfg(test)]
mod tests;
