//! Windows, attribution, causes, statistics and the recommendation.
//!
//! Pure: data in, data out. No clock, no I/O, no async. How the numbers are
//! made is documented where they are made: `evidence` locates requests, `window`
//! bounds, `cause` explains, [`stats`] holds the formulas.

mod cause;
mod charts;
pub mod compare;
mod evidence;
pub(crate) mod figures;
mod findings;
mod latency;
pub mod model;
pub mod policy;
mod recommend;
pub mod stats;
mod streams;
pub mod validity;
mod window;

use std::collections::{BTreeMap, HashMap};

use cause::{Facts, Served};
use evidence::{Evidence, Place};
use latency::Values;
pub use model::{Analysis, RunResult};
use model::{Cause, Latencies, LoadResult, Mode, RequestCounts, Stage, Start, Termination, Verdict, Window};
pub use policy::{Class, Policy};
use streams::Streams;

use crate::record::retry;
use crate::record::{Outcome, Phase, RequestRow, Stamp};
use crate::timeline::{PodEnd, Request, Timeline};

/// The chance, shared by the terminations of a mode, that an upper bound is too small.
const ALPHA: f64 = 0.05;

/// A counted request with what was concluded about it.
#[derive(Debug)]
pub(crate) struct Judged<'a> {
    pub(crate) request: &'a Request,
    pub(crate) class: Class,
    /// Set exactly for the dropped ones.
    pub(crate) cause: Option<Cause>,
    /// The termination it is charged to.
    pub(crate) termination: Option<usize>,
    /// The terminations that could explain it; the one above, or several.
    pub(crate) candidates: Vec<usize>,
    pub(crate) in_window: bool,
}

/// Analyses one run.
pub fn analyse(timeline: &Timeline, policy: &Policy) -> Analysis {
    let evidence = evidence::gather(timeline, policy);
    let modes = modes(&timeline.ends);
    let windows = windows(timeline, &modes, &evidence);
    let judged = judge(timeline, policy, &evidence, &windows);
    let disrupted = disrupted(timeline, &windows);
    let terminations = terminations(timeline, &modes, &evidence, &judged, windows);
    let requests = count(timeline, &judged);

    let mut lag = Values::new();
    for j in judged.iter().filter(|j| j.class != Class::NotSent) {
        lag.add(j.request.begun().ns_since(j.request.row.scheduled));
    }
    let load = LoadResult {
        rate: match timeline.info.load.is_closed_loop() {
            true => requests.total as f64 / duration_s(timeline).max(f64::MIN_POSITIVE),
            false => timeline.info.load.rate,
        },
        pacing: timeline.info.load.pacing.clone(),
        duration_s: duration_s(timeline),
        scheduled: requests.total,
        not_sent: requests.not_sent,
        send_lag_us: lag.send_lag(),
    };
    let invalid = validity::invalid(timeline, &load, &terminations);
    let partial = validity::partial(timeline, &requests);
    let verdict = match (invalid.is_empty(), partial.is_empty()) {
        (false, _) => Verdict::Invalid { why: invalid },
        (true, false) => Verdict::Partial { why: partial.clone() },
        (true, true) => Verdict::Valid,
    };
    let is_invalid = matches!(verdict, Verdict::Invalid { .. });
    let recommendation = recommend::recommendations(timeline, &terminations, &judged, policy, is_invalid);
    let covering = recommendation.iter().filter_map(|r| r.covers_all_seen_seconds).max();
    let (latency_ms, histograms) = latencies(&judged, &disrupted, load.is_closed_loop());
    let charts = charts::charts(timeline, &judged, &terminations, histograms);
    let result = RunResult {
        schema_version: model::SCHEMA_VERSION,
        tool: timeline.info.tool.clone(),
        scenario: timeline.info.name.clone(),
        cluster: timeline.info.cluster.clone(),
        complete: partial.is_empty(),
        command: timeline
            .commands
            .iter()
            .find(|command| command.code != Some(0))
            .or(timeline.commands.last())
            .map(command_result),
        findings: findings::findings(timeline, &verdict, &partial, &requests, &latency_ms, &terminations),
        verdict,
        load,
        requests,
        latency_ms,
        starts: starts(timeline),
        windows_s: recommend::summaries(&terminations),
        what_if: recommend::what_if(timeline, &terminations, &judged, covering),
        recommendation,
        terminations,
        longest_outage_s: longest_outage_s(&judged),
        checks: Vec::new(),
    };
    Analysis { result, charts }
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

/// The mode of each termination: that of the action behind it, unless another pod was going away
/// at the same time. Then it was not isolated, whatever was asked for.
fn modes(ends: &[PodEnd]) -> Vec<Mode> {
    let begins_before_end = |a: &PodEnd, b: &PodEnd| b.gone().is_none_or(|gone| a.t0.earliest <= gone);
    let overlap = |a: &PodEnd, b: &PodEnd| begins_before_end(a, b) && begins_before_end(b, a);
    let is_alone = |end: &PodEnd| ends.iter().all(|other| other.uid == end.uid || !overlap(end, other));
    let known = [Mode::Isolated, Mode::Rollout, Mode::ScaleDown, Mode::Drain, Mode::NodeShutdown];
    let mode = |end: &PodEnd| match known.into_iter().find(|mode| mode.as_str() == end.mode) {
        Some(Mode::Isolated) if !is_alone(end) => Mode::Other,
        named => named.unwrap_or(Mode::Other),
    };
    ends.iter().map(mode).collect()
}

fn windows(timeline: &Timeline, modes: &[Mode], evidence: &Evidence) -> Vec<Vec<Window>> {
    let alpha = |mode: &Mode| ALPHA / modes.iter().filter(|other| *other == mode).count() as f64;
    let bound = |((end, mode), tails): ((&PodEnd, &Mode), &Vec<evidence::Tail>)| {
        let targets = timeline.info.targets.iter().zip(tails);
        targets.map(|(target, tail)| window::window(end, target, tail, alpha(mode))).collect()
    };
    timeline.ends.iter().zip(modes).zip(&evidence.tails).map(bound).collect()
}

/// Where a window ends at the latest: its bound, or the last arrival that was seen where it has none.
fn window_end(end: &PodEnd, window: &Window, tail_last: Option<Stamp>) -> Stamp {
    match window.upper_s {
        Some(upper_s) => end.t0.earliest + std::time::Duration::from_secs_f64(upper_s.max(0.0)),
        None => tail_last.map_or(end.t0.latest, |at| at.max(end.t0.latest)),
    }
}

fn judge<'a>(
    timeline: &'a Timeline,
    policy: &Policy,
    evidence: &Evidence,
    windows: &[Vec<Window>],
) -> Vec<Judged<'a>> {
    let first_served = first_served(timeline);
    let streams = Streams::new(timeline.requests.iter().map(|request| &request.row));
    let mut judged = Vec::new();
    for ((request, place), &stale) in timeline.requests.iter().zip(&evidence.places).zip(&evidence.stale) {
        let row = &request.row;
        if row.phase == Phase::Warmup {
            continue;
        }
        let class = policy.class(row);
        if class != Class::Dropped {
            judged.push(Judged {
                request,
                class,
                cause: None,
                termination: None,
                candidates: Vec::new(),
                in_window: false,
            });
            continue;
        }
        let begun = request.begun();
        let starting = match place {
            Place::Pod { name, .. } => first_served.get(&**name).is_none_or(|at| begun < *at),
            // Nobody saw it arrive: a pod whose endpoint is ready and that has served nothing yet fits.
            _ => timeline.pods.iter().any(|life| {
                !life.listed
                    && life.endpoint_ready.is_some_and(|at| at <= begun)
                    && first_served.get(life.name.as_str()).is_some_and(|at| begun < *at)
            }),
        };
        let target = timeline.info.targets.iter().position(|t| *t.name == *row.target);
        let service = target.and_then(|t| timeline.info.targets[t].service.as_deref());
        let facts = Facts {
            outcome: row.outcome,
            reused: row.conn_reused && streams.has_answered(row),
            shared: streams.shared(row),
            bytes_received: row.bytes_received,
            begun,
            end: row.end,
            served: request.served.as_deref().map(Served::of),
            no_endpoint: timeline.endpoints.none_usable(service, begun),
            stale,
            starting,
            restarting: timeline
                .restarts
                .iter()
                .any(|restart| restart.from <= row.end && restart.to.is_none_or(|to| begun <= to)),
        };
        let candidates: Vec<usize> = match place {
            Place::Pod { ending, .. } => ending.iter().copied().collect(),
            Place::OneOf(candidates) => candidates.clone(),
            Place::Unknown => Vec::new(),
        };
        let mut causes = candidates.iter().map(|&e| cause::cause(&facts, Some(&timeline.ends[e])));
        let cause = match causes.next() {
            None => cause::cause(&facts, None),
            Some(first) if causes.all(|c| c == first) => first,
            Some(_) => Cause::Unattributed,
        };
        let inside = |&e: &usize| {
            let end = &timeline.ends[e];
            target.is_some_and(|t| {
                let until = window_end(end, &windows[e][t], evidence.tails[e][t].last_possible);
                begun <= until && row.end >= end.t0.earliest
            })
        };
        let termination = if let [only] = candidates[..] { Some(only) } else { None };
        judged.push(Judged {
            request,
            class,
            cause: Some(cause),
            termination,
            in_window: !candidates.is_empty() && candidates.iter().all(inside),
            candidates,
        });
    }
    judged
}

/// When each pod was first sent a request that it answered.
fn first_served(timeline: &Timeline) -> HashMap<&str, Stamp> {
    let mut first: HashMap<&str, Stamp> = HashMap::new();
    for r in timeline.requests.iter().filter(|r| r.row.outcome == Outcome::Ok) {
        if let Some(pod) = r.pod() {
            let at = first.entry(pod).or_insert(r.begun());
            *at = (*at).min(r.begun());
        }
    }
    first
}

/// What load sources counted, but for what their rows tell.
fn without_rows(timeline: &Timeline) -> BTreeMap<String, BTreeMap<Outcome, u64>> {
    let mut without = timeline.tallies.clone();
    for request in timeline.counted() {
        let row = &request.row;
        if let Some(count) = without.get_mut(&*row.source).and_then(|tally| tally.get_mut(&row.outcome)) {
            *count = count.saturating_sub(1);
        }
    }
    without.values_mut().for_each(|tally| tally.retain(|_, count| *count > 0));
    without.retain(|_, tally| !tally.is_empty());
    without
}

fn count(timeline: &Timeline, judged: &[Judged<'_>]) -> RequestCounts {
    let load = &timeline.info.load.other;
    let method = |row: &RequestRow| {
        let own = load.get("methods").and_then(|methods| methods.get(&*row.target)).and_then(|m| m.as_str());
        own.unwrap_or("GET")
    };
    let has_key = load.get("idempotency_key").and_then(|has| has.as_bool()).unwrap_or(false);
    let mut c = RequestCounts {
        warmup: timeline.requests.iter().filter(|r| r.row.phase == Phase::Warmup).count() as u64,
        total: judged.len() as u64,
        without_rows: without_rows(timeline),
        ..RequestCounts::default()
    };
    for j in judged {
        let row = &j.request.row;
        *c.by_outcome.entry(row.outcome).or_default() += 1;
        match j.class {
            Class::Ok => c.ok += 1,
            Class::AppError => c.app_errors += 1,
            Class::NotSent => c.not_sent += 1,
            Class::Cancelled => c.cancelled += 1,
            Class::Dropped => c.dropped += 1,
        }
        let Some(cause) = j.cause else { continue };
        *c.by_cause.entry(cause).or_default() += 1;
        c.in_window += u64::from(j.in_window);
        c.outside_window += u64::from(!j.in_window);
        c.unattributed += u64::from(cause == Cause::Unattributed);
        c.ambiguous += u64::from(j.candidates.len() > 1);
        let method = method(row);
        let is_idempotent = retry::is_idempotent(method) && row.outcome != Outcome::HttpError;
        c.retry_hidden.safe_idempotent += u64::from(is_idempotent);
        let go_hides = retry::go_hides(row, has_key || retry::go_replays(method));
        c.retry_hidden.go_net_http += u64::from(go_hides);
    }
    debug_assert!(closes(&c), "accounting does not close: {c:?}");
    c
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
    judged: &[Judged<'_>],
    windows: Vec<Vec<Window>>,
) -> Vec<Termination> {
    let mut terminations: Vec<Termination> = timeline
        .ends
        .iter()
        .zip(modes)
        .zip(windows)
        .zip(&evidence.tails)
        .map(|(((end, mode), windows), tails)| {
            let last = tails.iter().filter_map(|t| t.last_certain).max().filter(|at| *at > end.t0.latest);
            Termination {
                pod: end.pod.clone(),
                uid: end.uid.clone(),
                node: end.node.clone(),
                mode: *mode,
                disruption: end.disruption,
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
                t0_uncertainty_s: end.t0.latest.seconds_since(end.t0.earliest),
                t0_s: timeline.seconds(end.t0.latest),
                timeline: stages(end, last),
                exit_code: end.exit_code,
                windows,
                requests: model::TerminationRequests::default(),
                dead_seconds: None,
            }
        })
        .collect();
    let mut lost: HashMap<(usize, &str), u64> = HashMap::new();
    for j in judged {
        if let (Some(e), Some(cause)) = (j.termination, j.cause) {
            let t = &mut terminations[e].requests;
            t.dropped += 1;
            t.seen += 1;
            *t.by_outcome.entry(j.request.row.outcome).or_default() += 1;
            *t.by_cause.entry(cause).or_default() += 1;
            if j.request.is_new_connection() {
                *lost.entry((e, &j.request.row.target)).or_default() += 1;
            }
        }
    }
    for (r, place) in timeline.requests.iter().zip(&evidence.places) {
        let answered = matches!(r.row.outcome, Outcome::Ok) && r.row.phase == Phase::Main;
        if let (Place::Pod { ending: Some(e), .. }, true) = (place, answered) {
            terminations[*e].requests.seen += 1;
        }
    }
    for (e, t) in terminations.iter_mut().enumerate() {
        let dead = timeline.info.targets.iter().zip(&t.windows).filter(|(_, w)| w.rate_before > 0.0);
        t.dead_seconds = dead
            .map(|(target, w)| {
                lost.get(&(e, target.name.as_str())).map_or(0.0, |n| *n as f64 / w.rate_before)
            })
            .max_by(f64::total_cmp);
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

fn starts(timeline: &Timeline) -> Vec<Start> {
    let first = first_served(timeline);
    let began = timeline.pods.iter().filter(|p| !p.listed);
    began
        .map(|p| Start {
            pod: p.name.clone(),
            timeline: [
                ("created", Some(p.created)),
                ("ip_reported", p.ip_reported),
                ("ready", p.ready),
                ("endpoint_ready", p.endpoint_ready),
                ("first_request", first.get(p.name.as_str()).copied()),
            ]
            .into_iter()
            .filter_map(|(stage, at)| Some((stage.to_owned(), at?.seconds_since(p.created))))
            .collect(),
        })
        .collect()
}

/// From each t0 to the end of that pod or of its window, whichever is later.
fn disrupted(timeline: &Timeline, windows: &[Vec<Window>]) -> Vec<(Stamp, Stamp)> {
    let until = |(end, windows): (&PodEnd, &Vec<Window>)| {
        let window = windows.iter().map(|w| window_end(end, w, None)).max();
        (end.t0.earliest, window.max(end.gone()).unwrap_or(end.t0.latest))
    };
    timeline.ends.iter().zip(windows).map(until).collect()
}

fn latencies(
    judged: &[Judged<'_>],
    disrupted: &[(Stamp, Stamp)],
    is_closed_loop: bool,
) -> (Latencies, model::LatencyHistograms) {
    let [mut response, mut service, mut steady, mut near] = [(); 4].map(|()| Values::new());
    let complete = |j: &&Judged<'_>| matches!(j.request.row.outcome, Outcome::Ok | Outcome::HttpError);
    for row in judged.iter().filter(complete).map(|j| &j.request.row) {
        let mut ns = row.end.ns_since(row.scheduled);
        if let Some(sent) = row.sent {
            let service_ns = row.end.ns_since(sent);
            service.add(service_ns);
            if is_closed_loop {
                ns = service_ns;
            }
        }
        if !is_closed_loop {
            response.add(ns);
        }
        if disrupted.iter().any(|(from, to)| (*from..=*to).contains(&row.scheduled)) {
            near.add(ns);
        } else {
            steady.add(ns);
        }
    }
    let latencies = Latencies {
        response: response.percentiles(),
        service: service.percentiles(),
        steady: steady.percentiles(),
        disrupted: near.percentiles(),
    };
    (latencies, model::LatencyHistograms { steady: steady.buckets(), disrupted: near.buckets() })
}

/// From the first request of a row of failures to the next success, by intended send time.
fn longest_outage_s(judged: &[Judged<'_>]) -> f64 {
    let mut longest = 0.0f64;
    let mut since = None;
    for j in judged {
        let at = j.request.row.scheduled;
        match j.class {
            Class::Ok => {
                longest = since.take().map_or(longest, |s| longest.max(at.seconds_since(s)));
            }
            Class::Dropped | Class::AppError => {
                longest = longest.max(at.seconds_since(*since.get_or_insert(at)));
            }
            Class::NotSent | Class::Cancelled => {}
        }
    }
    longest
}

#[cfg(test)]
mod tests;
