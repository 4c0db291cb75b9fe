//! Result of `rolldrop load`: the parts of result.json that a load alone can fill in, and a table.
//!
//! Only produces bytes; the command writes them.

mod load_figures;

use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::Arc;

use hdrhistogram::Histogram;
use serde::Serialize;

use crate::classes::ByClass;
use load_figures::{Bytes, Distribution, LoadLatencies, SecondFigures, TargetFigures};
use rolldrop_explain::conclude::validity::not_as_planned;
use rolldrop_explain::model::figure_text::count;
use rolldrop_explain::model::{LoadResult, SendLag, Verdict};
use rolldrop_load::{ErrorStatuses, LoadSummary, Tally, TargetTally, errno_name, status_name};
use rolldrop_record::load::Pacing;
use rolldrop_record::load::{Arrivals, ConnectionMode};
use rolldrop_record::run_info::{LoadPlan, Tool};
use rolldrop_record::{Outcome, Stamp};

/// Version of the `--format json` output.
const SCHEMA_VERSION: u32 = 1;

/// Content of `--format json`, with the field names of result.json.
#[derive(Debug, Serialize)]
pub struct LoadReport {
    schema_version: u32,
    tool: Tool,
    /// Time the schedule began, in UTC.
    start: String,
    /// Verdict on whether this was the requested load.
    pub verdict: Verdict,
    load: LoadFigures,
    pub(crate) requests: LoadRequests,
    pub(crate) latency_ms: LoadLatencies,
    bytes: Bytes,
    targets: Vec<TargetFigures>,
    seconds: Vec<SecondFigures>,
}

/// Planned and sent load.
#[derive(Debug, Serialize)]
struct LoadFigures {
    /// Maximum number of simultaneously open connections.
    #[serde(skip)]
    connections: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    arrivals: Option<Arrivals>,
    #[serde(skip_serializing_if = "Option::is_none")]
    stages: Option<Vec<String>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    seed: Option<u64>,
    /// Requests per second: scheduled, sent, and not sent.
    per_s: Rates,
    #[serde(flatten)]
    sent: LoadResult,
}

#[derive(Debug, Serialize)]
struct Rates {
    /// `None` in a closed loop, which has no schedule.
    offered: Option<f64>,
    sent: f64,
    not_sent: f64,
}

#[derive(Debug, Serialize)]
pub(crate) struct LoadRequests {
    warmup: u64,
    pub(crate) total: u64,
    #[serde(flatten)]
    pub(crate) by_class: ByClass,
    pub(crate) by_outcome: BTreeMap<Outcome, u64>,
    /// HTTP statuses of complete responses.
    statuses: BTreeMap<u16, u64>,
    /// Failures that Go's net/http would have hidden by retrying.
    go_hidden: u64,
    /// Results for a client that retries, with `--retry`.
    #[serde(skip_serializing_if = "Option::is_none")]
    with_retries: Option<WithRetries>,
}

/// Final results for a client that retries.
#[derive(Debug, Serialize)]
struct WithRetries {
    retried: u64,
    ok: u64,
    by_outcome: BTreeMap<Outcome, u64>,
}

impl LoadReport {
    /// Creates the result of a load with this plan. `stopped` is the time the schedule was stopped, possibly before the
    /// last request finished.
    pub fn new(plan: &LoadPlan, summary: &LoadSummary, stopped: Option<Stamp>) -> Self {
        let tally = &summary.tally;
        let total = tally.outcomes.total();
        let is_closed_loop = plan.is_closed_loop();
        // A schedule that ran to completion has its planned length; otherwise the duration is measured.
        let end = stopped.map_or(summary.ended, |stopped| stopped.min(summary.ended));
        let elapsed_s = end.ns_since(summary.started) as f64 / 1e9 - plan.warmup_s;
        let duration_s = match (is_closed_loop, summary.stopped_early) {
            (false, false) => plan.duration_s,
            (false, true) => elapsed_s.clamp(0.0, plan.duration_s),
            (true, _) => elapsed_s.max(0.0),
        };
        let not_sent = tally.outcomes.of(Outcome::NotSent);
        let per_s = |requests: u64| if duration_s > 0.0 { requests as f64 / duration_s } else { 0.0 };
        let sent = LoadResult {
            pacing: plan.pacing,
            rate: if is_closed_loop { per_s(total) } else { plan.rate },
            duration_s,
            scheduled: total,
            not_sent,
            send_lag_us: SendLag::of_ns(&tally.send_lag_ns),
        };
        let by_reason = tally.not_sent.iter().map(|(reason, n)| (reason.to_string(), *n)).collect();
        let invalid = not_as_planned(&sent, &by_reason);
        let verdict = match (invalid.is_empty(), summary.stopped_early) {
            (false, _) => Verdict::Invalid { why: invalid.iter().map(rolldrop_report::reason).collect() },
            (true, true) => {
                let of =
                    if plan.duration_s > 0.0 { format!(" of {} s", plan.duration_s) } else { String::new() };
                Verdict::Partial { why: vec![format!("interrupted after {elapsed_s:.1} s{of}")] }
            }
            (true, false) => Verdict::Valid,
        };
        let of_target =
            |(name, of): (&Arc<str>, &TargetTally)| TargetFigures::new(name, of, is_closed_loop, duration_s);
        let bytes = |of: fn(&TargetTally) -> u64| tally.targets.values().map(of).sum();
        Self {
            schema_version: SCHEMA_VERSION,
            tool: Tool::this(),
            start: jiff::Timestamp::from_nanosecond(summary.started.unix_ns().into())
                .unwrap_or_default()
                .to_string(),
            verdict,
            load: LoadFigures {
                connections: plan.max_connections,
                arrivals: plan.arrivals,
                stages: plan.stages.clone(),
                seed: plan.seed,
                per_s: Rates {
                    offered: (!is_closed_loop).then(|| per_s(total)),
                    sent: per_s(total - not_sent),
                    not_sent: per_s(not_sent),
                },
                sent,
            },
            requests: LoadRequests::new(plan, tally),
            latency_ms: LoadLatencies::new(tally, is_closed_loop),
            bytes: Bytes::new(bytes(|of| of.bytes_sent), bytes(|of| of.bytes_received), duration_s),
            targets: tally.targets.iter().map(of_target).collect(),
            seconds: summary.seconds.iter().map(|of| SecondFigures::new(of, is_closed_loop)).collect(),
        }
    }
}

impl LoadRequests {
    fn new(plan: &LoadPlan, tally: &Tally) -> Self {
        let outcomes = &tally.outcomes;
        let mut statuses = BTreeMap::new();
        for (status, n) in tally.targets.values().flat_map(|of| &of.statuses) {
            *statuses.entry(*status).or_default() += n;
        }
        Self {
            warmup: tally.warmup,
            total: outcomes.total(),
            by_class: ByClass::of(outcomes, &tally.error_statuses),
            by_outcome: outcomes.iter().collect(),
            statuses,
            go_hidden: tally.go_hidden,
            with_retries: plan.retries.is_some().then(|| WithRetries {
                retried: tally.retried,
                ok: tally.final_outcomes.of(Outcome::Ok),
                by_outcome: tally.final_outcomes.iter().collect(),
            }),
        }
    }
}

/// Returns the times for the percentile table: response times, or service times in a closed loop.
pub fn latency<'a>(plan: &LoadPlan, summary: &'a LoadSummary) -> &'a Histogram<u64> {
    if plan.is_closed_loop() { &summary.tally.service_ns } else { &summary.tally.response_ns }
}

/// Formats the result for people, with the summary on the first line unless the result cannot be trusted.
pub fn text(url: &str, plan: &LoadPlan, report: &LoadReport, summary: &LoadSummary, color: bool) -> String {
    let mut out = String::new();
    if let Some(alarm) = report.alarm() {
        let (on, off) = if color { ("\u{1b}[1;31m", "\u{1b}[0m") } else { ("", "") };
        out.push_str(&format!("{on}{alarm}{off}\n\n"));
    }
    out.push_str(&report.answer(plan.connections));
    // Writing to a string cannot fail.
    let _ = write_text(&mut out, url, report, summary);
    out
}

impl LoadReport {
    /// Returns a warning with reasons if the figures do not reflect the requested load.
    fn alarm(&self) -> Option<String> {
        match &self.verdict {
            Verdict::Valid => None,
            Verdict::Partial { why } => {
                Some(format!("PARTIAL: {}; the figures cover the requests sent until then", why.join("; ")))
            }
            Verdict::Invalid { why } => {
                Some(format!("INVALID: this is not the load you asked for: {}", why.join("; ")))
            }
        }
    }

    /// Describes requests, rate, connection use, and failures by class.
    fn answer(&self, connections: ConnectionMode) -> String {
        let Self { requests, load, .. } = self;
        let failures = requests.by_outcome.iter().filter(|(outcome, _)| **outcome != Outcome::Ok);
        let mut failures: Vec<_> = failures.map(|(outcome, n)| (*n, outcome.as_str())).collect();
        failures.sort_by_key(|(n, _)| std::cmp::Reverse(*n));
        let failures: Vec<String> =
            failures.iter().map(|(n, name)| format!("{} {name}", count(*n))).collect();
        let became = match (requests.total, failures.is_empty()) {
            (0, _) => String::new(),
            (_, true) => ": all ok".to_owned(),
            (total, false) => {
                format!(": {} not ok: {}", count(total - requests.by_class.ok), failures.join(", "))
            }
        };
        let noun = if requests.total == 1 { "request" } else { "requests" };
        format!(
            "{} {noun}, {:.1}/s, {connections} connections{became}\n",
            count(requests.total),
            load.per_s.sent
        )
    }
}

fn write_text(out: &mut String, url: &str, report: &LoadReport, summary: &LoadSummary) -> std::fmt::Result {
    let LoadReport { load, requests, latency_ms, .. } = report;
    let share = |count: u64| 100.0 * count as f64 / requests.total.max(1) as f64;
    writeln!(out, "{url}: {}\n", load.in_words())?;
    writeln!(out, "requests   {:>10}", requests.total)?;
    let ByClass { ok, dropped, app_errors, not_sent, cancelled } = requests.by_class;
    for (name, count) in [
        ("ok", ok),
        ("dropped", dropped),
        ("app errors", app_errors),
        ("not sent", not_sent),
        ("cancelled", cancelled),
    ] {
        if count > 0 || matches!(name, "ok" | "dropped") {
            writeln!(out, "{name:<10} {count:>10} {:>7.2} %", share(count))?;
        }
    }
    if requests.warmup > 0 {
        writeln!(out, "warm-up    {:>10}   not counted", requests.warmup)?;
    }
    writeln!(out)?;
    let failures = requests.by_outcome.iter().filter(|(outcome, _)| **outcome != Outcome::Ok);
    for (outcome, count) in failures.clone() {
        writeln!(out, "{:<22} {count:>8}{}", outcome.as_str(), details(*outcome, &summary.tally))?;
    }
    if failures.count() > 0 {
        writeln!(out)?;
    }
    if requests.go_hidden > 0 {
        let hidden = requests.go_hidden;
        writeln!(out, "a Go client (net/http) would have hidden {hidden} of these by sending them again\n")?;
    }
    if let Some(WithRetries { retried, ok, .. }) = &requests.with_retries {
        let lost = requests.total - ok;
        writeln!(out, "with retries: {retried} requests were sent again, {lost} still failed\n")?;
    }
    write_statuses(out, &requests.statuses)?;
    write_times(out, latency_ms)?;
    write_targets(out, &report.targets)?;
    let Bytes { sent_per_s, received_per_s, .. } = report.bytes;
    writeln!(out, "bytes/s     sent {sent_per_s:.0}, received {received_per_s:.0}")?;
    match load.per_s.offered {
        Some(offered) => {
            let lag = &load.sent.send_lag_us;
            writeln!(
                out,
                "requests/s  offered {offered:.1}, sent {:.1}, not sent {:.1}",
                load.per_s.sent, load.per_s.not_sent
            )?;
            writeln!(out, "send lag    p50 {:.0} µs, p99 {:.0} µs, max {:.0} µs", lag.p50, lag.p99, lag.max)?;
        }
        None => writeln!(
            out,
            "requests/s  sent {:.1}\nCLOSED LOOP: each slow answer delayed the requests after it, so there are no \
             response times. Service times do not show what independent users would see",
            load.per_s.sent
        )?,
    }
    Ok(())
}

fn write_statuses(out: &mut String, statuses: &BTreeMap<u16, u64>) -> std::fmt::Result {
    let most = statuses.values().copied().max().unwrap_or(1);
    for (status, n) in statuses {
        // The longest bar has 40 columns; even small counts get one.
        let bar = "#".repeat(usize::try_from((n * 40).div_ceil(most)).unwrap_or(40));
        writeln!(out, "status {status} {n:>10}  {bar}")?;
    }
    if statuses.is_empty() { Ok(()) } else { writeln!(out) }
}

fn write_times(out: &mut String, times: &LoadLatencies) -> std::fmt::Result {
    if times.rows().next().is_none() {
        return Ok(());
    }
    let names = ["min", "mean", "p50", "p75", "p90", "p95", "p99", "p99.9", "max"];
    let names: String = names.iter().map(|name| format!(" {name:>7}")).collect();
    writeln!(out, "{:<8}{names}", "ms")?;
    for (name, of) in times.rows() {
        let Distribution { min, p75, percentiles: p } = of;
        let values = [*min, p.mean, p.p50, *p75, p.p90, p.p95, p.p99, p.p99_9, p.max];
        let values: String = values.iter().map(|ms| format!(" {ms:>7.2}")).collect();
        writeln!(out, "{name:<8}{values}")?;
    }
    writeln!(out)
}

/// Writes one line per target if there are several.
fn write_targets(out: &mut String, targets: &[TargetFigures]) -> std::fmt::Result {
    if targets.len() < 2 {
        return Ok(());
    }
    writeln!(out, "{:>9} {:>9} {:>9} {:>8} {:>8}  target", "requests", "ok", "dropped", "p50 ms", "p99 ms")?;
    for TargetFigures { name, total, by_class, response_ms, service_ms, .. } in targets {
        let p = &response_ms.as_ref().unwrap_or(service_ms).percentiles;
        let ByClass { ok, dropped, .. } = by_class;
        writeln!(out, "{total:>9} {ok:>9} {dropped:>9} {:>8.2} {:>8.2}  {name}", p.p50, p.p99)?;
    }
    writeln!(out)
}

impl LoadFigures {
    fn in_words(&self) -> String {
        let length = match self.sent.duration_s {
            s if s < 1.0 => format!("{:.0} ms", s * 1e3),
            s => format!("{s:.1} s"),
        };
        let rate = match (&self.stages, self.sent.pacing) {
            (_, Pacing::ClosedLoop) => {
                let at_a_time = self.connections.unwrap_or_default();
                format!("closed loop, {at_a_time} at a time, for {length}")
            }
            (Some(stages), _) => format!("{} requests/s", stages.join(", ")),
            _ => format!("{} requests/s for {length}", self.sent.rate),
        };
        match &self.seed {
            Some(seed) if self.arrivals.is_some() => format!("{rate}, Poisson arrivals (seed {seed})"),
            _ => rate,
        }
    }
}

/// Returns further details of an outcome, beyond its count.
fn details(outcome: Outcome, tally: &Tally) -> String {
    let list = |parts: Vec<String>| format!("  ({})", parts.join(", "));
    match outcome {
        Outcome::HttpError => {
            let ErrorStatuses { http, grpc } = &tally.error_statuses;
            let http = http.iter().map(|(status, n)| format!("{n} × {status}"));
            let grpc = grpc.iter().map(|(status, n)| format!("{n} × {}", status_name(*status)));
            list(http.chain(grpc).collect())
        }
        Outcome::NotSent => {
            list(tally.not_sent.iter().map(|(reason, n)| format!("{n} × {reason}")).collect())
        }
        _ => {
            let own = tally.errnos.range((outcome, i32::MIN)..=(outcome, i32::MAX));
            let errnos = own.map(|((_, errno), n)| format!("{n} × {}", errno_name(*errno)));
            let own = tally.details.iter().filter(|((of, _), _)| *of == outcome);
            let why: Vec<_> = errnos.chain(own.map(|((_, detail), n)| format!("{n} × {detail}"))).collect();
            if why.is_empty() { String::new() } else { list(why) }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use serde_json::Value;

    use super::*;
    use rolldrop_load::{Load, OutcomeCounts, Pace, Plan};

    fn summary() -> LoadSummary {
        let mut tally = Tally { warmup: 10, ..Tally::default() };
        for (outcome, count) in [
            (Outcome::Ok, 90),
            (Outcome::HttpError, 5),
            (Outcome::ConnectRefused, 2),
            (Outcome::NotSent, 2),
            (Outcome::Cancelled, 1),
        ] {
            tally.outcomes.add(outcome, count);
        }
        tally.error_statuses.http = BTreeMap::from([(404, 2), (503, 3)]);
        tally.errnos =
            BTreeMap::from([((Outcome::ConnectRefused, nix::errno::Errno::ECONNREFUSED as i32), 2)]);
        tally.not_sent = BTreeMap::from([("late".into(), 2)]);
        for ms in 1..=90 {
            tally.response_ns.record(ms * 1_000_000);
            tally.service_ns.record(ms * 500_000);
            tally.send_lag_ns.record(ms * 1_000);
        }
        LoadSummary {
            sources: vec!["load-0".into()],
            started: Stamp::from_unix_ns(0),
            ended: Stamp::from_unix_ns(1_100_000_000),
            scheduled: 110,
            stopped_early: false,
            tally,
            seconds: Vec::new(),
            ports: None,
        }
    }

    fn report() -> (LoadPlan, LoadSummary, LoadReport) {
        let settings =
            Load { pace: Pace::constant(100.0, Duration::from_secs(1)), ..Load::new("http://web/") };
        let plan = Plan::new(settings).unwrap().load_plan();
        let summary = summary();
        let report = LoadReport::new(&plan, &summary, None);
        (plan, summary, report)
    }

    #[test]
    fn request_counts_add_up() {
        let (_, _, report) = report();
        let (r, by_class) = (&report.requests, report.requests.by_class);
        assert_eq!(r.total, by_class.ended() + by_class.not_sent + by_class.cancelled);
        assert_eq!((by_class.dropped, by_class.app_errors), (5, 2), "3 × 503 and 2 refusals; 2 × 404");
        assert_eq!(r.by_outcome.values().sum::<u64>(), r.total);
    }

    #[test]
    fn interrupted_load_report_starts_with_partial() {
        let (plan, mut summary, _) = report();
        summary.tally.outcomes = OutcomeCounts::default();
        summary.tally.error_statuses = ErrorStatuses::default();
        summary.tally.outcomes.add(Outcome::Ok, 40);
        // The last responses arrived later.
        (summary.ended, summary.stopped_early) = (Stamp::from_unix_ns(900_000_000), true);
        let report = LoadReport::new(&plan, &summary, Some(Stamp::from_unix_ns(400_000_000)));
        let text = text("http://web/", &plan, &report, &summary, false);
        let first = "PARTIAL: interrupted after 0.4 s of 1 s; the figures cover the requests sent until then\n\n\
                     40 requests, 100.0/s, fresh connections: all ok\n";
        assert!(text.starts_with(first), "{text}");
    }

    #[test]
    fn load_report_matches_schema() {
        let schema: Value = serde_json::from_str(include_str!("../../../docs/load.schema.json")).unwrap();
        let (mut plan, summary, _) = report();
        let check = |plan: &LoadPlan| {
            let value = serde_json::to_value(LoadReport::new(plan, &summary, None)).unwrap();
            rolldrop_testing::schema::meets(&value, &schema).unwrap();
        };
        check(&plan);
        plan.retries = Some(2);
        plan.arrivals = Some(Arrivals::Poisson);
        plan.seed = Some(7);
        plan.stages = Some(vec!["5:1s".to_owned()]);
        check(&plan);
        plan.pacing = Pacing::ClosedLoop;
        check(&plan);
    }

    #[test]
    fn table_shows_losses_and_unsent_requests() {
        let (plan, summary, report) = report();
        insta::assert_snapshot!(text("http://web/", &plan, &report, &summary, false), @r"
        INVALID: this is not the load you asked for: 2 of 100 requests were not sent (2 %, limit 0.1 %); 2: a load worker got to them too late (late)

        100 requests, 98.0/s, fresh connections: 10 not ok: 5 http_error, 2 connect_refused, 2 not_sent, 1 cancelled
        http://web/: 100 requests/s for 1.0 s

        requests          100
        ok                 90   90.00 %
        dropped             5    5.00 %
        app errors          2    2.00 %
        not sent            2    2.00 %
        cancelled           1    1.00 %
        warm-up            10   not counted

        http_error                    5  (2 × 404, 3 × 503)
        connect_refused               2  (2 × ECONNREFUSED)
        not_sent                      2  (2 × late)
        cancelled                     1

        ms           min    mean     p50     p75     p90     p95     p99   p99.9     max
        response    1.00   45.50   45.02   68.03   81.00   86.05   90.05   90.05   90.05
        service     0.50   22.75   22.51   34.01   40.50   43.02   45.02   45.02   45.02

        bytes/s     sent 0, received 0
        requests/s  offered 100.0, sent 98.0, not sent 2.0
        send lag    p50 45 µs, p99 90 µs, max 90 µs
        ");
    }
}
