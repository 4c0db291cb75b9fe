//! Conclusions for the reader: validity, findings and recommendations.

pub(crate) mod aim;
pub(crate) mod charting;
pub(crate) mod explained;
pub(crate) mod findings;
mod phase;
pub(crate) mod recommend;
pub(crate) mod start_entries;
pub(crate) mod termination_entries;
pub mod validity;
pub(crate) mod working;

use crate::attribute::judged::JudgedRequest;
use crate::attribute::shares;
use crate::conclude::explained::Explained;
use crate::count::request_counts;
use crate::count::sums::Sums;
use crate::model::account::{Account, Incomplete, Invalid, MeasuredQuantity};
use crate::model::{
    Analysis, ChartData, CommandResult, LoadResult, RequestCounts, RunResult, SCHEMA_VERSION, Verdict,
};
use crate::timeline::{RunCommand, Timeline};

/// Draws the conclusions from the explained terminations of a run.
pub(crate) fn analysis(timeline: &Timeline, explained: Explained<'_>) -> Analysis {
    let Explained { facts, unbounded, disrupted, sums, errors, judged, streams, terminations } = explained;
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
        schema_version: SCHEMA_VERSION,
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
        starts: start_entries::starts(&facts, &judged),
        aim: aim::aim(timeline),
        windows_s: recommend::summaries(&terminations),
        what_if,
        recommendation,
        terminations,
        groups,
        only_target: request_counts::only_target(&timeline.info.targets),
        targets,
        longest_outage_s: sums.all.apart.outages.longest_s(),
        is_failing_at_end: sums.all.apart.outages.are_open(),
        checks: Vec::new(),
        looks: timeline.info.looks.clone(),
    };
    let (open_streams, steady) = streams.map(|streams| (streams.open, streams.steady)).unzip();
    let open_streams = open_streams.unwrap_or_default();
    let charts = ChartData { sleeps, open_streams, ..charting::charts(timeline, sums) };
    let (run, lost) = (timeline.info.run.to_string(), charting::lost(timeline, judged));
    Analysis { run, result, account, lost, charts, steady }
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

fn command_result(command: &RunCommand) -> CommandResult {
    CommandResult {
        words: command.words.clone(),
        code: command.code,
        signal: command.signal,
        duration_s: command.ended.map(|at| at.seconds_since(command.started)),
    }
}
