//! Windows, attribution, causes, statistics and the recommendation.
//!
//! Pure: data in, data out. No clock, no I/O, no async. Each number is documented where it is computed. The rooms, in
//! the order in which a run passes them: `timeline` (events and requests on one clock; `pods::t0` decides when a deletion
//! took effect, `drop_policy` which requests count as dropped), `route` (when traffic to a pod stopped), `attribute` (who
//! lost what, and why), `count` (sums), `conclude` (validity, findings, recommendation), `judge` (gate, comparison, tune's
//! choice). `model` is what leaves the crate, `math` holds the formulas.
//!
//! Answered requests are too many to be held in memory. They are read once: for what only all of them show
//! (`timeline::requests`), for the arrivals at each pod, from which the windows follow (`evidence`), and for the sums over
//! all of them (`sums`). What depends on all of that is asked afterwards, of some columns of their rows: `evidence` asks what
//! the failures of a gateway, of a source port or of a kept connection need, if there are some, and `sums` which requests
//! were near a termination. Where the first look proves not to know enough of them ([`Analysed::of`]), they are read again.

mod attribute;
pub mod conclude;
pub mod count;
pub mod judge;
mod math;
pub mod model;
mod route;
pub mod timeline;

use std::collections::BTreeMap;

use attribute::evidence::{self, Evidence, Gathered};
use attribute::judged::{self, Judged};
use attribute::shares;
use conclude::aim::aim;
pub use conclude::recommend::MAX_COARSENESS_S;
use conclude::validity::{self, Reason};
use conclude::{charts, findings, recommend};
use count::periods::Periods;
use count::sums::{Part, Sums};
use count::while_ending::{self, EndingError};
use judge::spending;
use math::stats;
pub use model::{Analysis, RunResult};
use model::{
    LoadResult, Mode, OutsideCounts, RequestCounts, Stage, Start, StartStage, TargetName, TargetResult,
    Termination, Verdict, Window,
};
use route::window;
pub use timeline::drop_policy::Class;

use crate::timeline::{PodEnd, PodLife, Request, Requests, Timeline, Unread};
use rolldrop_record::load::defaults;
use rolldrop_record::parts::{PartError, Wanted};
use rolldrop_record::retry;
use rolldrop_record::run_info::Target;
use rolldrop_record::{Cause, Looks, Outcome, RequestRow, RowSource, RunLog, Stamp};

/// How many windows that end apart are needed until the longest covers this share of all, at this confidence, both in
/// (0, 1): Wilks 1941.
pub fn windows_needed(coverage: f64, confidence: f64) -> usize {
    stats::wilks_needed(coverage, confidence)
}

/// A run with what was found out about it.
#[derive(Debug)]
pub struct Analysed {
    /// What happened when.
    pub timeline: Timeline,
    /// Its requests.
    pub requests: Requests,
    /// What follows.
    pub analysis: Analysis,
}

impl Analysed {
    /// Analyses the records of a run.
    ///
    /// # Errors
    /// When its rows cannot be read.
    pub fn of(log: RunLog, rows: impl RowSource + 'static) -> Result<Self, PartError> {
        Self::of_rows(log, Box::new(rows))
    }

    // Not generic: what goes through all rows is compiled here, with this crate's optimisations.
    fn of_rows(log: RunLog, rows: Box<dyn RowSource>) -> Result<Self, PartError> {
        let unread = Unread::of(log);
        // Where proxies recorded who answered, that is known once their rows are joined with all requests.
        let draft = if rows.has_served() { None } else { unread.draft() };
        let (requests, plain) = unread.read(
            rows,
            || draft.as_ref().map(Plain::new),
            |plain, r| plain.iter_mut().for_each(|plain| plain.add(r)),
            |plain, later| plain.iter_mut().zip(later).for_each(|(plain, later)| plain.merge(later)),
        )?;
        let timeline = unread.finish(draft.as_ref(), &requests)?;
        let plain = plain.filter(|plain| plain.holds(&timeline, &requests));
        let analysis = analyse(&timeline, &requests, plain)?;
        Ok(Self { timeline, requests, analysis })
    }
}

/// What the requests that were plainly answered add up to.
struct Plain<'a> {
    /// As it is known when they are read.
    timeline: &'a Timeline,
    gathered: Gathered<'a>,
    sums: Sums<'a>,
}

impl<'a> Plain<'a> {
    /// Those of a run whose rows were read before.
    fn of(timeline: &'a Timeline, requests: &Requests) -> Result<Self, PartError> {
        requests.plain(Wanted::All, || Self::new(timeline), Self::add, Self::merge)
    }

    /// No request yet.
    fn new(timeline: &'a Timeline) -> Self {
        Self { timeline, gathered: Gathered::new(timeline), sums: Sums::new(timeline) }
    }

    fn add(&mut self, r: &Request) {
        self.gathered.answered(self.timeline, r);
        self.sums.add(self.timeline, r.pod(), r);
    }

    /// Adds what later requests add up to.
    fn merge(&mut self, later: Self) {
        self.gathered.merge(later.gathered);
        self.sums.merge(later.sums);
    }

    /// Whether they add up to the same now that all requests are known.
    fn holds(&self, timeline: &Timeline, requests: &Requests) -> bool {
        let [then, now] = [self.timeline, timeline].map(|timeline| &timeline.info.targets);
        let balances_the_same = then.iter().zip(now).all(|(then, now)| then.balances == now.balances);
        requests.agreement.is_relied_on && balances_the_same
    }
}

/// Analyses one run. Its rows are read again for `plain` if that is not there.
fn analyse<'a>(
    timeline: &'a Timeline,
    requests: &'a Requests,
    plain: Option<Plain<'a>>,
) -> Result<Analysis, PartError> {
    let Plain { gathered, sums, .. } = plain.map_or_else(|| Plain::of(timeline, requests), Ok)?;
    let modes = modes(&timeline.ends);
    let alpha = alpha(timeline, &modes);
    let (verdicts, evidence) = evidence::gather(timeline, requests, &alpha, gathered)?;
    let windows = windows(timeline, &evidence, &alpha);
    let disrupted = disrupted(timeline, &windows);
    let sums = Sums::of(timeline, requests, &evidence, &disrupted, sums)?;
    let errors = while_ending::errors(timeline, &requests.others, &verdicts);
    let judged = judged::judge(timeline, (&requests.others, verdicts), &evidence, &windows, &sums);
    let terminations = terminations(timeline, &modes, &evidence, &sums, (&judged, &errors), windows);
    let all: Vec<&Judged<'_>> = judged.iter().collect();
    let groups = shares::groups(timeline, &terminations, &all);
    let requests = count(timeline, &sums.all, (&all, errors.len()), &disrupted);
    let targets = targets(timeline, &sums, &terminations, (&all, &errors), &disrupted);
    let not_working = requests.outside_terminations.finding(&requests);

    let load = load_result(timeline, &requests, &sums);
    let latency_ms = sums.all.latencies(timeline.info.load.is_closed_loop());
    let measured = validity::Measured::of(&terminations, &latency_ms.response);
    let invalid = validity::invalid(timeline, &load, &requests.not_sent_by_reason, measured, &terminations);
    let partial = validity::partial(timeline, &sums);
    let verdict = verdict(&invalid, &partial);
    let ground = recommend::Ground {
        timeline,
        terminations: &terminations,
        groups: &groups,
        judged: &judged,
        verdict: &verdict,
        service_s: latency_ms.service.p99 / 1e3,
    };
    let recommendation = recommend::recommendations(ground);
    let covering = recommendation.iter().filter_map(|r| r.covers_all_seen_seconds).max();
    let what_if = recommend::what_if(ground, covering);
    let sleeps = recommend::sleeps(ground);
    let result = RunResult {
        schema_version: model::SCHEMA_VERSION,
        tool: timeline.info.tool.clone(),
        scenario: timeline.info.name.clone(),
        cluster: timeline.info.cluster.clone(),
        complete: partial.is_empty(),
        integrity: validity::integrity(timeline),
        command: (timeline.commands.iter().find(|command| command.code != Some(0)))
            .or(timeline.commands.last())
            .map(command_result),
        findings: not_working
            .into_iter()
            .chain(findings::findings(findings::Known {
                timeline,
                sums: &sums,
                invalid: &invalid,
                partial: &partial,
                requests: &requests,
                judged: &judged,
                latency_ms: &latency_ms,
                terminations: &terminations,
                groups: &groups,
                recommendation: &recommendation,
            }))
            .collect(),
        verdict,
        load,
        requests,
        latency_ms,
        starts: starts(timeline, &evidence, &judged),
        aim: aim(timeline),
        windows_s: recommend::summaries(&terminations),
        what_if,
        recommendation,
        terminations,
        groups,
        only_target: only_target(&timeline.info.targets),
        targets,
        longest_outage_s: sums.all.apart.outages.longest_s(),
        checks: Vec::new(),
        looks: timeline.info.looks.clone(),
    };
    let charts = model::ChartData { sleeps, ..charts::charts(timeline, sums) };
    let run = timeline.info.run.as_ref().map(ToString::to_string);
    Ok(Analysis { run, result, lost: charts::lost(timeline, judged), charts })
}

/// The verdict on the measurement, from the reasons against it.
fn verdict(invalid: &[Reason], partial: &[Reason]) -> Verdict {
    let why = |reasons: &[Reason]| reasons.iter().map(|reason| reason.what.clone()).collect();
    match (invalid, partial) {
        ([_, ..], _) => Verdict::Invalid { why: why(invalid) },
        ([], [_, ..]) => Verdict::Partial { why: why(partial) },
        ([], []) => Verdict::Valid,
    }
}

/// The load as it was planned and sent.
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

/// The length of the counted part: as planned, or until the load was stopped.
fn duration_s(timeline: &Timeline) -> f64 {
    let (planned, lasted) = (timeline.info.load.duration_s, timeline.seconds(timeline.load_ended));
    if timeline.info.load.is_closed_loop() {
        return lasted.max(0.0);
    }
    // The last request of a load that was not stopped begins just before its end.
    if lasted + 1.0 < planned { lasted.max(0.0) } else { planned }
}

fn command_result(command: &crate::timeline::Command) -> model::CommandResult {
    model::CommandResult {
        words: command.words.clone(),
        code: command.code,
        signal: command.signal,
        duration_s: command.ended.map(|at| at.seconds_since(command.started)),
    }
}

/// The mode of each termination: that of its action. If another pod was ending at the same time, it was not isolated.
fn modes(ends: &[PodEnd]) -> Vec<Mode> {
    let is_alone = |end: &PodEnd| ends.iter().all(|other| other.uid == end.uid || !end.overlaps(other));
    let mode = |end: &PodEnd| match end.mode {
        Mode::Isolated if !is_alone(end) => Mode::Other,
        mode => mode,
    };
    ends.iter().map(mode).collect()
}

/// By termination, the chance that an upper bound of its windows is too small, shared between all windows that one
/// statement covers: those of its mode, for all consumers.
fn alpha(timeline: &Timeline, modes: &[Mode]) -> Vec<f64> {
    let targets = timeline.info.targets.len().max(1);
    let error = timeline.info.looks.as_ref().map_or(spending::ALPHA, Looks::alpha);
    let alpha = |mode| error / (targets * modes.iter().filter(|other| *other == mode).count()) as f64;
    modes.iter().map(alpha).collect()
}

fn windows(timeline: &Timeline, evidence: &Evidence, alpha: &[f64]) -> Vec<Vec<Window>> {
    let bound = |((end, tails), alpha): ((&PodEnd, &Vec<evidence::Tail>), &f64)| {
        let targets = timeline.info.targets.iter().zip(tails);
        let window = |(target, tail): (&Target, _)| window::window(timeline, end, target, tail, *alpha);
        targets.map(window).collect()
    };
    timeline.ends.iter().zip(&evidence.tails).zip(alpha).map(bound).collect()
}

/// The latest end of a window: its bound, or the last arrival that was seen if it has none.
fn window_end(end: &PodEnd, window: &Window, tail_last: Option<Stamp>) -> Stamp {
    match window.upper_s {
        Some(upper_s) => end.t0.earliest + std::time::Duration::from_secs_f64(upper_s.max(0.0)),
        None => tail_last.map_or(end.t0.latest, |at| at.max(end.t0.latest)),
    }
}

/// The counts with what was concluded about the dropped requests.
fn count(
    timeline: &Timeline,
    part: &Part<'_>,
    (judged, errors): (&[&Judged<'_>], usize),
    disrupted: &Periods,
) -> RequestCounts {
    let load = &timeline.info.load;
    let method = |row: &RequestRow| {
        let own = load.methods.as_ref().and_then(|methods| methods.get(&*row.target));
        own.map_or(defaults::METHOD, String::as_str)
    };
    let has_key = load.idempotency_key.unwrap_or(false);
    let mut c = RequestCounts {
        outside_terminations: OutsideCounts::of(timeline, part, judged, disrupted),
        app_errors_while_ending: errors as u64,
        ..part.counts.clone()
    };
    for j in judged {
        let row = &j.request.row;
        *c.by_cause.entry(j.cause).or_default() += 1;
        c.in_window += u64::from(j.in_window);
        let was_under_way =
            j.candidates.iter().all(|c| j.request.begun() < timeline.ends[c.termination].t0.earliest);
        let is_known = j.candidates.iter().any(|c| c.why.is_certain());
        c.in_flight += u64::from(j.in_window && was_under_way);
        c.by_time += u64::from(j.in_window && !was_under_way && !is_known);
        c.outside_window += u64::from(!j.in_window);
        c.unattributed += u64::from(j.cause == Cause::Unattributed);
        c.ambiguous += u64::from(j.candidates.len() > 1);
        // The only connections that are tracked here are the generator's own.
        if j.cause == Cause::StaleFlow {
            c.stale_flow_own += 1;
            *c.stale_flow_own_by_outcome.entry(row.outcome).or_default() += 1;
        }
        let method = method(row);
        let is_idempotent = retry::is_idempotent(method) && row.outcome != Outcome::HttpError;
        c.retry_hidden.safe_idempotent += u64::from(is_idempotent);
        let go_hides = retry::go_hides(row, has_key || retry::go_replays(method));
        c.retry_hidden.go_net_http += u64::from(go_hides);
    }
    debug_assert!(closes(&c), "accounting does not close: {c:?}");
    c
}

fn only_target(targets: &[Target]) -> Option<TargetName> {
    match targets {
        [Target { name, consumer, .. }] => {
            Some(TargetName { name: name.clone(), consumer: consumer.clone() })
        }
        _ => None,
    }
}

/// The requests of each target; nothing where there is only one.
fn targets(
    timeline: &Timeline,
    sums: &Sums<'_>,
    terminations: &[Termination],
    (judged, errors): (&[&Judged<'_>], &[EndingError]),
    disrupted: &Periods,
) -> Vec<TargetResult> {
    let of = |(index, (target, part)): (usize, (&Target, &Part<'_>))| {
        let is_its = |j: &&&Judged<'_>| timeline.target_of(&j.request.row) == Some(index);
        let its: Vec<&Judged<'_>> = judged.iter().filter(is_its).copied().collect();
        TargetResult {
            name: target.name.clone(),
            consumer: target.consumer.clone(),
            requests: count(
                timeline,
                part,
                (&its, errors.iter().filter(|error| error.target == Some(index)).count()),
                disrupted,
            ),
            latency_ms: part.latencies(timeline.info.load.is_closed_loop()),
            longest_outage_s: part.apart.outages.longest_s(),
            terminations: shares::requests(terminations.len(), &its),
            groups: shares::groups(timeline, terminations, &its),
        }
    };
    timeline.info.targets.iter().zip(&sums.targets).enumerate().map(of).collect()
}

/// Whether the accounting closes: every request is counted once, every dropped one has one cause.
pub fn closes(c: &RequestCounts) -> bool {
    c.total == c.ok + c.dropped + c.app_errors + c.not_sent + c.cancelled
        && c.total == c.by_outcome.values().sum::<u64>()
        && c.dropped == c.in_window + c.outside_window
        && c.dropped == c.by_cause.values().sum::<u64>()
}

fn terminations(
    timeline: &Timeline,
    modes: &[Mode],
    evidence: &Evidence,
    sums: &Sums<'_>,
    (judged, errors): (&[Judged<'_>], &[EndingError]),
    windows: Vec<Vec<Window>>,
) -> Vec<Termination> {
    let mut terminations: Vec<Termination> = timeline
        .ends
        .iter()
        .zip(modes)
        .zip(windows)
        .zip(&evidence.tails)
        .map(|(((end, mode), windows), tails)| {
            let last =
                tails.iter().filter_map(evidence::Tail::last_certain).max().filter(|at| *at > end.t0.latest);
            Termination {
                pod: end.pod.clone(),
                uid: end.uid.clone(),
                node: end.node.clone(),
                mode: *mode,
                disruption: end.disruption,
                repetition: end.repetition,
                cause: end.cause.clone(),
                watch_gaps: timeline
                    .gaps_of(end)
                    .map(|gap| model::WatchGap {
                        resource: gap.resource.clone(),
                        from_s: timeline.seconds(gap.from),
                        to_s: timeline.seconds(gap.to),
                        lost: gap.is_lost,
                    })
                    .collect(),
                t0_basis: Some(end.t0.basis),
                t0_uncertainty_s: end.t0.latest.seconds_since(end.t0.earliest),
                t0_s: timeline.seconds(end.t0.latest),
                timeline: stages(end, last),
                pre_stop_seconds: end.pre_stop_sleep_s.map(|s| u64::try_from(s).unwrap_or(0)),
                grace_period_seconds: u64::try_from(end.grace_s).unwrap_or(0),
                exit_code: end.exit_code,
                windows,
                requests: model::TerminationRequests::default(),
                app_errors_after_t0: None,
                dead_seconds: None,
            }
        })
        .collect();
    for (e, (t, lost)) in terminations
        .iter_mut()
        .zip(shares::requests(timeline.ends.len(), &judged.iter().collect::<Vec<_>>()))
        .enumerate()
    {
        let names_it = |j: &Judged<'_>| j.candidates.iter().any(|c| c.termination == e && c.why.is_certain());
        let own_errors = errors.iter().filter(|error| error.termination == Some(e)).count() as u64;
        let has_served = |life: usize| evidence.first_served[life].is_some();
        let is_named = sums.seen[e] > 0
            || timeline.pods.iter().position(|life| life.uid == t.uid).is_some_and(has_served)
            || judged.iter().any(names_it);
        let seen = is_named.then(|| sums.seen[e] + lost.dropped.at_least);
        t.requests = model::TerminationRequests { seen, ..lost };
        t.app_errors_after_t0 = is_named.then_some(own_errors);
    }
    let dead = shares::dead_seconds(timeline, &terminations, judged, &evidence.tails);
    for (t, dead_seconds) in terminations.iter_mut().zip(dead) {
        t.dead_seconds = dead_seconds;
    }
    terminations
}

fn stages(end: &PodEnd, last_connection: Option<Stamp>) -> BTreeMap<Stage, f64> {
    let s = &end.stages;
    [
        (Stage::DeleteSent, s.delete_sent),
        (Stage::DeletionSeen, s.deletion_seen),
        (Stage::EndpointTerminating, s.endpoint_terminating),
        (Stage::KillBegan, s.kill_began),
        (Stage::AppSigterm, end.pre_stop_sleep_s.filter(|sleep| *sleep > 0).map(|_| end.may_stop_from())),
        (Stage::ListenerClosed, s.listener_closed),
        (Stage::AppExited, s.app_exited),
        (Stage::LastConnection, last_connection),
        (Stage::ContainersTerminated, s.containers_terminated),
        (Stage::EndpointRemoved, s.endpoint_removed),
        (Stage::PodDeleted, s.pod_deleted),
    ]
    .into_iter()
    .filter_map(|(stage, at)| Some((stage, at?.seconds_since(end.t0.latest))))
    .collect()
}

/// How long before a pod's first answer requests must have been lost for it to have been awaited, at most and at least:
/// a pod that consumers have just learned of gets its first request some time after the others.
const AWAITED_NS: [i64; 2] = [1_000_000_000, 200_000_000];

fn starts(timeline: &Timeline, evidence: &Evidence, judged: &[Judged<'_>]) -> Vec<Start> {
    let began = timeline.pods.iter().zip(&evidence.first_served).filter(|(p, _)| !p.listed);
    let lost = judged.iter().filter(|judged| judged.cause == Cause::NotReadyYet);
    let lost: Vec<Stamp> = lost.map(|judged| judged.request.begun()).collect();
    let was_awaited = |p: &PodLife, served: Stamp| {
        let [from, to] = AWAITED_NS.map(|ns| served.shifted_ns(-ns));
        lost.iter().any(|at| (from..=to).contains(at) && *at >= p.created)
    };
    began
        .map(|(p, first_served)| Start {
            pod: p.name.clone(),
            uid: p.uid.clone(),
            was_awaited: first_served.is_some_and(|served| was_awaited(p, served)),
            timeline: [
                (StartStage::Created, Some(p.created)),
                (StartStage::IpReported, p.ip_reported),
                (StartStage::Ready, p.ready),
                (StartStage::EndpointReady, p.endpoint_ready),
                (StartStage::FirstRequest, *first_served),
            ]
            .into_iter()
            .filter_map(|(stage, at)| Some((stage, at?.seconds_since(p.created))))
            .collect(),
        })
        .collect()
}

/// The times from each t0 to the end of that pod or of its window, whichever is later.
fn disrupted(timeline: &Timeline, windows: &[Vec<Window>]) -> Periods {
    let until = |(end, windows): (&PodEnd, &Vec<Window>)| {
        let window = windows.iter().map(|w| window_end(end, w, None)).max();
        (end.t0.earliest, window.max(end.gone()).unwrap_or(end.t0.latest))
    };
    Periods::of(timeline.ends.iter().zip(windows).map(until))
}

#[cfg(test)]
mod tests;
