//! The result of `rolldrop load`: the parts of result.json that a load alone can fill, and a table.
//!
//! Bytes only; where they go is the command's business.

use std::collections::BTreeMap;
use std::fmt::Write;

use hdrhistogram::Histogram;
use serde::Serialize;

use crate::analysis::model::{LoadResult, Percentiles, SendLag};
use crate::load::{Summary, Tally};
use crate::record::Outcome;
use crate::record::run_info::LoadPlan;

/// What `--format json` prints, with the names of result.json.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    load: LoadResult,
    requests: Requests,
    latency_ms: Latencies,
}

#[derive(Debug, Serialize)]
struct Requests {
    warmup: u64,
    total: u64,
    ok: u64,
    dropped: u64,
    app_errors: u64,
    not_sent: u64,
    cancelled: u64,
    by_outcome: BTreeMap<Outcome, u64>,
}

#[derive(Debug, Serialize)]
struct Latencies {
    response: Percentiles,
    service: Percentiles,
}

impl Report {
    /// The result of a load that was planned so.
    pub(super) fn new(plan: &LoadPlan, summary: &Summary) -> Self {
        let tally = &summary.tally;
        let total = tally.outcomes.total();
        let duration_s = if summary.stopped_early { total as f64 / plan.rate } else { plan.duration_s };
        let lag_us = |quantile| tally.send_lag_ns.value_at_quantile(quantile) as f64 / 1e3;
        Self {
            load: LoadResult {
                rate: plan.rate,
                duration_s,
                scheduled: total,
                not_sent: tally.outcomes.of(Outcome::NotSent),
                send_lag_us: SendLag { p50: lag_us(0.5), p99: lag_us(0.99), max: lag_us(1.0) },
            },
            requests: Requests::new(tally),
            latency_ms: Latencies {
                response: percentiles_ms(&tally.response_ns),
                service: percentiles_ms(&tally.service_ns),
            },
        }
    }
}

impl Requests {
    fn new(tally: &Tally) -> Self {
        let outcomes = &tally.outcomes;
        let gateway = gateway_errors(tally);
        let [ok, not_sent, cancelled, http_errors] =
            [Outcome::Ok, Outcome::NotSent, Outcome::Cancelled, Outcome::HttpError].map(|o| outcomes.of(o));
        let app_errors = http_errors - gateway;
        let total = outcomes.total();
        Self {
            warmup: tally.warmup,
            total,
            ok,
            dropped: total - ok - not_sent - cancelled - app_errors,
            app_errors,
            not_sent,
            cancelled,
            by_outcome: outcomes.iter().collect(),
        }
    }
}

/// Responses that a proxy in between gives when it reached nobody: they count as
/// dropped, like every transport failure; other errors are the app's own.
fn gateway_errors(tally: &Tally) -> u64 {
    [502, 503, 504].iter().filter_map(|status| tally.error_statuses.get(status)).sum()
}

fn percentiles_ms(ns: &Histogram<u64>) -> Percentiles {
    let at = |quantile| ns.value_at_quantile(quantile) as f64 / 1e6;
    Percentiles { n: ns.len(), p50: at(0.5), p90: at(0.9), p99: at(0.99), p99_9: at(0.999), max: at(1.0) }
}

/// The result as a table.
pub(super) fn text(url: &str, plan: &LoadPlan, report: &Report, summary: &Summary) -> String {
    let (load, requests) = (&report.load, &report.requests);
    let mut out = String::new();
    // Writing to a string cannot fail.
    let _ = write_text(&mut out, url, plan, load, requests, &report.latency_ms, summary);
    out
}

fn write_text(
    out: &mut String,
    url: &str,
    plan: &LoadPlan,
    load: &LoadResult,
    requests: &Requests,
    latencies: &Latencies,
    summary: &Summary,
) -> std::fmt::Result {
    let share = |count: u64| 100.0 * count as f64 / requests.total.max(1) as f64;
    writeln!(
        out,
        "{url}: {} requests/s for {:.1} s, {} connections{}",
        plan.rate,
        load.duration_s,
        plan.connections,
        if summary.stopped_early { " (stopped early)" } else { "" },
    )?;
    writeln!(out)?;
    writeln!(out, "requests   {:>10}", requests.total)?;
    for (name, count) in [
        ("ok", requests.ok),
        ("dropped", requests.dropped),
        ("app errors", requests.app_errors),
        ("not sent", requests.not_sent),
        ("cancelled", requests.cancelled),
    ] {
        if count > 0 || matches!(name, "ok" | "dropped") {
            writeln!(out, "{name:<10} {count:>10} {:>7.2} %", share(count))?;
        }
    }
    if requests.warmup > 0 {
        writeln!(out, "and {} of the warm-up, which are not counted", requests.warmup)?;
    }
    let failures: Vec<_> =
        requests.by_outcome.iter().filter(|(outcome, _)| **outcome != Outcome::Ok).collect();
    if !failures.is_empty() {
        writeln!(out)?;
        for (outcome, count) in failures {
            writeln!(out, "{:<22} {count:>9}{}", outcome.as_str(), details(*outcome, &summary.tally))?;
        }
    }
    writeln!(out)?;
    writeln!(out, "{:<10} {:>9} {:>9} {:>9} {:>9} {:>9}", "ms", "p50", "p90", "p99", "p99.9", "max")?;
    for (name, p) in [("response", &latencies.response), ("service", &latencies.service)] {
        writeln!(
            out,
            "{name:<10} {:>9.2} {:>9.2} {:>9.2} {:>9.2} {:>9.2}",
            p.p50, p.p90, p.p99, p.p99_9, p.max
        )?;
    }
    writeln!(out)?;
    let sent = requests.total - requests.not_sent;
    let sent_rate = plan.rate * sent as f64 / requests.total.max(1) as f64;
    let lag = &load.send_lag_us;
    writeln!(
        out,
        "sent {sent_rate:.1} of {:.1} requests/s; send lag p50 {:.0} µs, p99 {:.0} µs, max {:.0} µs",
        plan.rate, lag.p50, lag.p99, lag.max
    )?;
    if requests.not_sent > 0 {
        writeln!(
            out,
            "WARNING: {} requests were not sent, by the generator's own fault: this is not the load that was asked for",
            requests.not_sent
        )?;
    }
    Ok(())
}

/// What is known about an outcome beyond its count.
fn details(outcome: Outcome, tally: &Tally) -> String {
    let list = |parts: Vec<String>| format!("  ({})", parts.join(", "));
    match outcome {
        Outcome::HttpError => {
            list(tally.error_statuses.iter().map(|(status, n)| format!("{n} × {status}")).collect())
        }
        Outcome::NotSent => {
            list(tally.not_sent.iter().map(|(reason, n)| format!("{n} × {reason}")).collect())
        }
        _ => String::new(),
    }
}
