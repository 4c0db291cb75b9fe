//! Tests predictions against values computed by hand, the theory of infinite-server queues, and simulated terminations.

mod further;
pub(crate) mod laws;
mod study;

use rand::{SeedableRng, rngs::SmallRng};

use super::*;
use laws::{Arrivals, Law, Workload, lognormal, second, span};
use rolldrop_explain::model::MissingShare;
use rolldrop_explain::model::SpanEnd;
use rolldrop_explain::model::SteadyStreams;

/// Returns windows whose bounds are equal.
fn exactly(windows_s: &[f64]) -> Vec<(f64, f64)> {
    windows_s.iter().map(|window| (*window, *window)).collect()
}

/// Returns the virtual terminations of a record of 1000 s.
fn prepared(spans: &[StreamSpan], pods: usize, windows_s: &[f64]) -> VirtualTerminations {
    let windows_s = &exactly(windows_s)[..];
    let record = SteadyRecord { spans, from: second(0.0), to: second(1000.0), pods, windows_s };
    VirtualTerminations::of(&record).unwrap()
}

/// Returns 40 streams of one pod, each of which begins 20 s after the previous one.
fn row_of_streams(lasts_s: f64, ended: SpanEnd) -> Vec<StreamSpan> {
    let start = |i: i32| 10.0 + 20.0 * f64::from(i);
    (0..40).map(|i| span(0, start(i), start(i) + lasts_s, ended)).collect()
}

fn budget(seconds: f64) -> StreamBudget {
    StreamBudget { seconds, accepts_s: f64::INFINITY }
}

fn close(a: f64, b: f64) -> bool {
    (a - b).abs() < 1e-3
}

#[test]
fn streams_that_outlast_budget_are_cut() {
    let spans = row_of_streams(10.0, SpanEnd::Complete);
    let mean = |windows_s: &[f64], budget: StreamBudget| {
        prepared(&spans, 1, windows_s).cuts(budget).known().unwrap().mean(0.95).estimate
    };
    // Each of the 40 streams is cut by terminations within 6 s; 996 s of the record are followed by 4 s.
    assert!(close(mean(&[], budget(4.0)), 40.0 * 6.0 / 996.0));
    assert!(close(mean(&[2.0], budget(4.0)), 40.0 * 8.0 / 996.0));
    assert!(close(mean(&[1.0, 3.0], budget(4.0)), 40.0 * 8.0 / 996.0));
    assert!(close(mean(&[3.0], StreamBudget { seconds: 4.0, accepts_s: 1.0 }), 40.0 * 7.0 / 996.0));
    // A stream that arrives after the budget is refused, not cut.
    assert!(close(mean(&[30.0], budget(4.0)), 40.0 * 10.0 / 996.0));
}

#[test]
fn cut_streams_are_undecided() {
    let spans = row_of_streams(10.0, SpanEnd::Censored);
    let record = prepared(&spans, 1, &[]);
    let mean = record.cuts(budget(4.0)).known().unwrap().mean(0.95);
    assert!(
        close(mean.estimate, 40.0 * 10.0 / 996.0) && close(mean.undecided, 40.0 * 4.0 / 996.0),
        "{mean:?}"
    );
    assert!(mean.lower < 40.0 * 6.0 / 996.0 && mean.upper > mean.estimate);
    let needs = record.needs(0.0);
    let Estimate::Unknown { more_streams: None } = needs.covering(0.95, 0.95) else { panic!("{needs:?}") };
    let uncut = needs.uncut(4.0, 0.95);
    assert!(close(uncut.estimate.unwrap(), 1.0 - 400.0 / 996.0) && uncut.upper > 0.75, "{uncut:?}");
}

#[test]
fn uncertain_window_leaves_streams_undecided() {
    let spans = row_of_streams(10.0, SpanEnd::Complete);
    let windows_s = &[(1.0, 3.0)];
    let record = SteadyRecord { spans: &spans, from: second(0.0), to: second(1000.0), pods: 1, windows_s };
    let record = VirtualTerminations::of(&record).unwrap();
    let mean = record.cuts(budget(4.0)).known().unwrap().mean(0.95);
    assert!(
        close(mean.estimate, 40.0 * 9.0 / 996.0) && close(mean.undecided, 40.0 * 2.0 / 996.0),
        "{mean:?}"
    );
    assert!(mean.lower < 40.0 * 7.0 / 996.0, "{mean:?}");
}

#[test]
fn stream_open_at_end_is_not_undecided() {
    // The mean leaves out instants at which it is unknown whether the stream outlasts the budget.
    let mut spans = row_of_streams(10.0, SpanEnd::Complete);
    spans.push(span(0, 900.0, 1300.0, SpanEnd::Complete));
    let mean = prepared(&spans, 1, &[]).cuts(budget(4.0)).known().unwrap().mean(0.95);
    assert!(close(mean.estimate, (40.0 * 6.0 + 96.0) / 996.0) && mean.undecided == 0.0, "{mean:?}");
}

#[test]
fn too_few_long_streams_leave_cuts_unknown() {
    let spans = row_of_streams(10.0, SpanEnd::Complete);
    let record = prepared(&spans[..20], 1, &[]);
    let Estimate::Unknown { more_streams } = record.cuts(budget(4.0)) else { panic!("{record:?}") };
    assert_eq!(more_streams, Some(10));
    assert!(prepared(&spans, 1, &[]).cuts(budget(10.0)).known().is_none(), "beyond the longest stream");
    assert!(prepared(&spans, 1, &[]).cuts(budget(2000.0)).known().is_none(), "longer than the record");
    let empty = SteadyRecord { spans: &[], from: second(0.0), to: second(1.0), pods: 1, windows_s: &[] };
    assert!(VirtualTerminations::of(&empty).is_none());
}

#[test]
fn needs_are_bounded_by_order_statistics() {
    let spans = row_of_streams(10.0, SpanEnd::Complete);
    let record = prepared(&spans, 1, &[]);
    let needs = record.needs(0.0);
    assert!((72..=86).contains(&needs.units()), "one every 10 to 15 s: {}", needs.units());
    let covers = needs.covering(0.95, 0.95).known().unwrap();
    assert!((9.0..=10.0).contains(&covers), "{covers}");
    let uncut = needs.uncut(4.0, 0.95);
    let estimate = uncut.estimate.unwrap();
    assert!(close(estimate, 1.0 - 240.0 / 996.0), "{uncut:?}");
    assert!(uncut.lower < estimate && estimate < uncut.upper, "{uncut:?}");
    assert_eq!(needs.uncut(1000.0, 0.95).estimate, None, "longer than the record");
    // Streams of 100 s: the record has about 7 units, one every 125 s on average, with five streams each; 59 are
    // needed.
    let spans = row_of_streams(100.0, SpanEnd::Complete);
    let record = prepared(&spans, 1, &[]);
    let needs = record.needs(0.0);
    let Estimate::Unknown { more_streams } = needs.covering(0.95, 0.95) else { panic!("{needs:?}") };
    assert!((6..=9).contains(&needs.units()), "{}", needs.units());
    assert_eq!(more_streams, Some(5 * (59 - needs.units() as u64)));
}

#[test]
fn units_stay_out_of_phase_with_streams() {
    // Units exactly 10 s apart would hit every other stream at the same age.
    let spans = row_of_streams(10.0, SpanEnd::Complete);
    let record = prepared(&spans, 1, &[]);
    let covers = record.needs(0.0).covering(0.9, 0.95).known().unwrap();
    assert!(covers > 8.0, "{covers}");
}

#[test]
fn pods_terminate_until_last_stream_ends() {
    let spans = row_of_streams(10.0, SpanEnd::Complete);
    let record = prepared(&spans, 1, &[2.0]);
    let end = PodShutdown { sleep_s: 5.0, grace_s: 30.0, on_sigterm: OnSigterm::Drains };
    let forecast = record.forecast(end, 3, 0.95);
    // In each of 40 intervals of 20 s, the need falls from 12 to 0 s within 12 s; 970 s of the record are followed by
    // 30 s.
    let open_s = 40.0 * (7.0 * (12.0 - 3.5) + 13.0 * 5.0);
    assert!(close(forecast.terminating_s.unwrap(), (open_s + 170.0 * 5.0) / 970.0), "{forecast:?}");
    assert_eq!((forecast.refused, forecast.cut.known()), (Some(0.0), None));
    assert_eq!(record.forecast(PodShutdown { grace_s: 2000.0, ..end }, 3, 0.95).terminating_s, None);
}

#[test]
fn budget_is_sleep_if_app_cuts_streams_at_sigterm() {
    let spans = row_of_streams(10.0, SpanEnd::Complete);
    let record = prepared(&spans, 1, &[2.0]);
    let forecast =
        |sleep_s, on_sigterm| record.forecast(PodShutdown { sleep_s, grace_s: 6.0, on_sigterm }, 3, 0.95);
    let cut = |forecast: Forecast| forecast.cut.known().unwrap().estimate;
    let cuts = forecast(1.0, OnSigterm::Cuts);
    assert!(close(cut(cuts), 40.0 * 10.0 / 999.0) && close(cuts.terminating_s.unwrap(), 1.0), "{cuts:?}");
    assert!(close(cuts.refused.unwrap(), 0.04), "one second of arrivals: {cuts:?}");
    let drains = forecast(1.0, OnSigterm::Drains);
    assert!(close(cut(drains), 40.0 * 5.0 / 994.0), "{drains:?}");
    assert!(close(cut(forecast(4.0, OnSigterm::Cuts)), 40.0 * 8.0 / 996.0));
}

#[test]
fn shortest_grace_period_keeps_mean_within_limit() {
    let spans = row_of_streams(10.5, SpanEnd::Complete);
    let record = prepared(&spans, 1, &[]);
    let least = |most_cut| record.least_grace(0.0, most_cut, 0.95);
    // At 10 s, each stream is cut by terminations within a stretch of 0.5 s: 0.02 on average.
    assert_eq!((least(1.0), least(0.05)), (Estimate::Known(0), Estimate::Known(10)));
    assert_eq!(
        record.least_grace(12.0, 0.05, 0.95),
        Estimate::Known(12),
        "the sleep is part of the grace period"
    );
    let Estimate::Known(seconds) = least(0.2) else { panic!() };
    let upper = |seconds: u64| record.cuts(budget(seconds as f64)).known().unwrap().mean(0.95).upper;
    assert!(upper(seconds) <= 0.2 && upper(seconds - 1) > 0.2, "{seconds}");
    let Estimate::Unknown { more_streams: Some(more) } = least(0.001) else { panic!() };
    assert!(more > 800, "20 times as many streams are needed: {more}");
    assert_eq!(record.least_sleep(0.05, 0.95), Estimate::Known(10));
}

#[test]
fn bounds_contain_theoretical_values() {
    // Each bound may miss once in two million cases.
    let confidence = 1.0 - 5e-7;
    let law = Law::Exponential { mean: 10.0 };
    for (law, budget_s) in [(law, 30.0), (law, 45.0), (lognormal(10.0, 1.0), 102.0)] {
        let workload = Workload { law, arrivals: Arrivals { rate: 1.0, burst: 1 }, window_s: 2.0 };
        let spans = workload.record(2, 20_000.0, &mut SmallRng::seed_from_u64(1));
        let record = SteadyRecord {
            spans: &spans,
            from: second(0.0),
            to: second(20_000.0),
            pods: 2,
            windows_s: &[(2.0, 2.0)],
        };
        let record = VirtualTerminations::of(&record).unwrap();
        let (truth, mean) =
            (workload.cut(budget_s), record.cuts(budget(budget_s)).known().unwrap().mean(confidence));
        assert!(mean.lower < truth && truth < mean.upper && mean.upper < 2.5 * truth, "{truth} {mean:?}");
        // The number of streams cut has a Poisson distribution.
        let (truth, uncut) = ((-truth).exp(), record.needs(f64::INFINITY).uncut(budget_s, confidence));
        assert!(uncut.lower < truth && truth < uncut.upper, "{truth} {uncut:?}");
        let (rate, open) = (record.rate_per_pod(), record.open_per_pod());
        assert!((rate - 1.0).abs() < 0.03 && (open / law.mean() - 1.0).abs() < 0.1, "{rate} {open}");
    }
}

#[test]
fn bursts_widen_predictions() {
    let width = |burst| {
        let workload =
            Workload { law: lognormal(10.0, 1.0), arrivals: Arrivals { rate: 1.0, burst }, window_s: 0.0 };
        let spans = workload.record(1, 20_000.0, &mut SmallRng::seed_from_u64(2));
        let record =
            SteadyRecord { spans: &spans, from: second(0.0), to: second(20_000.0), pods: 1, windows_s: &[] };
        let cuts = VirtualTerminations::of(&record).unwrap().cuts(budget(5.0)).known().unwrap();
        let range = cuts.predict(100, 0.95);
        (range.upper - range.lower) as f64
    };
    assert!(width(10) > 1.5 * width(1), "{} {}", width(10), width(1));
}

/// Returns the steady part of a run with exponential lengths of 5 s, one stream per pod per second.
fn steady(missing: Option<MissingShare>, pods: &[&str]) -> SteadyStreams {
    let workload = Workload {
        law: Law::Exponential { mean: 5.0 },
        arrivals: Arrivals { rate: 1.0, burst: 1 },
        window_s: 0.0,
    };
    SteadyStreams {
        spans: workload.record(pods.len(), 3000.0, &mut SmallRng::seed_from_u64(11)),
        pods: pods.iter().map(|pod| (*pod).into()).collect(),
        from: second(0.0),
        to: second(3000.0),
        survival: Vec::new(),
        missing,
        unnamed: 7,
    }
}

/// Requests at most 0.1 cuts per termination.
fn asked(windows_s: &[(f64, f64)], sleep_s: Option<f64>) -> PredictionRequest<'_> {
    PredictionRequest {
        windows_s,
        lasted_at_least_s: 0.0,
        sleep_s,
        graces_s: &[],
        terminations: None,
        max_cut: 0.1,
        confidence: CONFIDENCE,
    }
}

#[test]
fn prediction_yields_shortest_grace_period() {
    let steady = steady(Some(MissingShare::Exactly(0.005)), &["a", "b", "c"]);
    let predicted = StreamPrediction::of(&steady, &asked(&[], None)).unwrap();
    // The mean is 5 exp(-g / 5), which is 0.1 at 19.6 s; its upper bound is larger.
    let Estimate::Known(grace_s) = predicted.least_grace else { panic!("{predicted:?}") };
    assert!((20..=24).contains(&grace_s), "{grace_s}");
    assert_eq!(predicted.least_sleep, predicted.least_grace, "no stream arrives after t0");
    assert_eq!((predicted.pods, predicted.sleep_s, predicted.window_s), (3, 0.0, None));
    let shown: Vec<f64> = predicted.draining.iter().map(|row| row.end.grace_s).collect();
    assert_eq!(shown, [10.0, grace_s as f64, 30.0, 60.0, 120.0, 300.0, 600.0]);
    assert!(close(predicted.rule_expects.unwrap(), 0.01 * predicted.open_per_pod));
    let slept = StreamPrediction::of(&steady, &asked(&exactly(&[1.5, 2.2]), Some(4.0))).unwrap();
    assert_eq!((slept.sleep_s, slept.window_s), (4.0, Some(2.2)));
    assert_eq!(StreamPrediction::of(&steady, &asked(&exactly(&[1.5, 2.2]), None)).unwrap().sleep_s, 3.0);
}

#[test]
fn window_without_upper_bound_stays_unknown() {
    let steady = steady(Some(MissingShare::Exactly(0.005)), &["a", "b", "c"]);
    let open = [(0.5, 1.5), (2.2, f64::INFINITY)];
    let predicted = StreamPrediction::of(&steady, &asked(&open, None)).unwrap();
    assert_eq!((predicted.window_s, predicted.window_at_least_s), (None, Some(2.2)));
    assert_eq!(predicted.sleep_s, 3.0, "no less than is known");
    assert!(predicted.draining.iter().all(|row| row.refused.is_none()), "{:?}", predicted.draining);
    let bounded = StreamPrediction::of(&steady, &asked(&open[..1], Some(3.0))).unwrap();
    let most = |of: &StreamPrediction| of.draining[0].cut.known().unwrap().upper;
    assert!(most(&predicted) > most(&bounded), "{predicted:?}");
    // One of several pods was used for longer, though nothing shows which.
    let of_group = PredictionRequest { lasted_at_least_s: 4.1, ..asked(&open, None) };
    assert_eq!(StreamPrediction::of(&steady, &of_group).unwrap().sleep_s, 5.0);
}

#[test]
fn prediction_covers_requested_grace_periods() {
    let steady = steady(Some(MissingShare::Exactly(0.005)), &["a", "b", "c"]);
    let cut_in_all = |terminations| {
        let request = PredictionRequest { graces_s: &[7.5], terminations, ..asked(&[], None) };
        let predicted = StreamPrediction::of(&steady, &request).unwrap();
        let row = predicted.draining.iter().find(|row| row.end.grace_s == 7.5).unwrap();
        (predicted.terminations, row.cut_in_all.known().unwrap())
    };
    // 5 exp(-7.5 / 5) = 1.12 streams per termination.
    let (rollout, few) = cut_in_all(None);
    assert_eq!(rollout, 3);
    assert!(few.lower <= 1 && (6..12).contains(&few.upper), "{few:?}");
    let (asked, many) = cut_in_all(Some(300));
    assert_eq!(asked, 300);
    assert!((250..335).contains(&many.lower) && (337..450).contains(&many.upper), "{many:?}");
}

#[test]
fn grace_periods_within_sleep_yield_one_row() {
    let steady = steady(Some(MissingShare::Exactly(0.005)), &["a", "b", "c"]);
    let predicted = StreamPrediction::of(&steady, &asked(&[], Some(45.0))).unwrap();
    let shown: Vec<f64> = predicted.draining.iter().map(|row| row.end.grace_s).collect();
    assert_eq!(shown, [45.0, 60.0, 120.0, 300.0, 600.0]);
}

#[test]
fn prediction_needs_pods_and_full_population() {
    let missing = Some(MissingShare::AtLeast(0.2));
    let refused = |steady: &SteadyStreams| StreamPrediction::of(steady, &asked(&[], None)).unwrap_err();
    let growing = NoPrediction::StillGrowing { after_s: 3000.0, missing };
    assert_eq!(refused(&steady(missing, &["a"])), growing);
    assert_eq!(refused(&steady(None, &["a"])), NoPrediction::StillGrowing { after_s: 3000.0, missing: None });
    assert_eq!(refused(&steady(missing, &[])), NoPrediction::NoPods { unnamed: 7 });
}
