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
    let mut out = String::new();
    // Writing to a string cannot fail.
    let _ = write_text(&mut out, url, plan, report, summary);
    out
}

fn write_text(
    out: &mut String,
    url: &str,
    plan: &LoadPlan,
    report: &Report,
    summary: &Summary,
) -> std::fmt::Result {
    let Report { load, requests, latency_ms } = report;
    let share = |count: u64| 100.0 * count as f64 / requests.total.max(1) as f64;
    let early = if summary.stopped_early { " (stopped early)" } else { "" };
    writeln!(
        out,
        "{url}: {} requests/s for {:.1} s, {} connections{early}\n",
        plan.rate, load.duration_s, plan.connections
    )?;
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
    if latency_ms.response.n > 0 {
        writeln!(out, "{:<10} {:>9} {:>9} {:>9} {:>9} {:>9}", "ms", "p50", "p90", "p99", "p99.9", "max")?;
        for (name, p) in [("response", &latency_ms.response), ("service", &latency_ms.service)] {
            writeln!(
                out,
                "{name:<10} {:>9.2} {:>9.2} {:>9.2} {:>9.2} {:>9.2}",
                p.p50, p.p90, p.p99, p.p99_9, p.max
            )?;
        }
        writeln!(out)?;
    }
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
            "WARNING: {} requests were not sent, by the generator's own fault: \
             this is not the load that was asked for",
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

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::load::{Plan, Settings};
    use crate::record::Stamp;

    fn summary() -> Summary {
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
        tally.error_statuses = BTreeMap::from([(404, 2), (503, 3)]);
        tally.not_sent = BTreeMap::from([("late".into(), 2)]);
        for ms in 1..=90 {
            tally.response_ns.record(ms * 1_000_000).unwrap();
            tally.service_ns.record(ms * 500_000).unwrap();
            tally.send_lag_ns.record(ms * 1_000).unwrap();
        }
        Summary {
            sources: vec!["load-0".into()],
            started: Stamp::from_unix_ns(0),
            ended: Stamp::from_unix_ns(1_100_000_000),
            scheduled: 110,
            stopped_early: false,
            tally,
        }
    }

    fn report() -> (LoadPlan, Summary, Report) {
        let settings =
            Settings { rate: 100.0, duration: Duration::from_secs(1), ..Settings::new("http://web/") };
        let plan = Plan::new(settings).unwrap().load_plan();
        let summary = summary();
        let report = Report::new(&plan, &summary);
        (plan, summary, report)
    }

    #[test]
    fn the_counts_close() {
        let (_, _, report) = report();
        let r = &report.requests;
        assert_eq!(r.total, r.ok + r.dropped + r.app_errors + r.not_sent + r.cancelled);
        assert_eq!((r.dropped, r.app_errors), (5, 2), "3 × 503 and 2 refusals; 2 × 404");
        assert_eq!(r.by_outcome.values().sum::<u64>(), r.total);
    }

    #[test]
    fn the_table_tells_what_was_lost_and_whether_the_load_was_sent() {
        let (plan, summary, report) = report();
        insta::assert_snapshot!(text("http://web/", &plan, &report, &summary), @r"
        http://web/: 100 requests/s for 1.0 s, fresh connections

        requests          100
        ok                 90   90.00 %
        dropped             5    5.00 %
        app errors          2    2.00 %
        not sent            2    2.00 %
        cancelled           1    1.00 %
        warm-up            10   not counted

        http_error                    5  (2 × 404, 3 × 503)
        connect_refused               2
        not_sent                      2  (2 × late)
        cancelled                     1

        ms               p50       p90       p99     p99.9       max
        response       45.02     81.00     90.05     90.05     90.05
        service        22.51     40.50     45.02     45.02     45.02

        sent 98.0 of 100.0 requests/s; send lag p50 45 µs, p99 90 µs, max 90 µs
        WARNING: 2 requests were not sent, by the generator's own fault: this is not the load that was asked for
        ");
    }
}
