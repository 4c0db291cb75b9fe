use std::collections::BTreeMap;

use super::*;
use rolldrop_explain::model::{FindingText, Mode, Severity, Stage, StartStage, Unit};
use rolldrop_judge::judgements::basis::{
    Basis, LatencyBasis, LongestWindow, LossUnits, Measured, PodFact, WindowOwner,
};
use rolldrop_judge::judgements::comparison::{self, ComparisonRow, Method, Metric, Proportion};
use rolldrop_judge::judgements::gate_check::{
    BaselineGrounds, CheckName, LatencyDoubt, LimitSide, MarginLimit, NoFigure, Prediction, Trend, UnfitRun,
    Worsening,
};
use rolldrop_record::expect::{LatencyFigure, Margin, Share};

fn check(verdict: CheckVerdict, evidence: CheckEvidence) -> CheckText {
    let name = CheckName::Limit("key.max".to_owned());
    written(&Check { name, verdict, evidence, invalid: None })
}

/// Returns an inconclusive check of a maximum of 1 s, with this basis.
fn open(basis: Basis) -> CheckText {
    let figure = Figure { unit: Unit::Seconds, low: Some(0.1), value: None, high: None };
    let measured = Measured { figure, basis };
    let evidence = CheckEvidence::Limit { measured, limit: 1.0, side: LimitSide::Max, by_default: false };
    check(CheckVerdict::Inconclusive, evidence)
}

fn pod(fact: PodFact) -> Basis {
    Basis::Pod("pod-0".to_owned(), fact)
}

fn found(what: &str) -> FindingText {
    let (what, why, remedy) = (what.to_owned(), String::new(), String::new());
    FindingText { severity: Severity::Warning, kind: None, cause: None, what, why, remedy }
}

#[test]
fn inconclusive_check_states_reason_and_remedy() {
    let of_latency = |basis| Basis::Latency(LatencyFigure::P99_9, basis);
    let units = LossUnits { number: 3, are_groups: false };
    let losses = |more| Basis::Losses { confidence: 0.9914, units, losing: 1, more };
    let percentile = |needed| Basis::Percentile { share: 0.9, confidence: 0.9821, windows: 29, needed };
    for (basis, wanted) in [
        (Basis::Observed, "the limit lies between the bounds"),
        (
            pod(PodFact::NoStage(Stage::ContainersTerminated)),
            "stage containers_terminated of pod pod-0 was not seen; keep the load running until the pod is gone",
        ),
        (
            pod(PodFact::NoStage(Stage::ListenerClosed)),
            "stage listener_closed of pod pod-0 was not seen; run the recording proxy in the pod (sidecar)",
        ),
        (
            pod(PodFact::NoStage(Stage::LastConnection)),
            "stage last_connection of pod pod-0 was not seen; open new connections to each pod until it ends",
        ),
        (
            pod(PodFact::NoStartStage(StartStage::Ready)),
            "stage ready of the new pod pod-0 was not seen; let the load run longer",
        ),
        (Basis::NoStart, "no pod started; let the run replace pods"),
        (Basis::NoEnd, "no pod ended; let the run end pods"),
        (
            Basis::NoStream,
            "the load sent no streams; send streams: load.stream in the scenario, or rolldrop load --stream",
        ),
        (
            Basis::UnseenExitCodes(vec!["pod-1".to_owned()]),
            "the exit code of pod pod-1 was not seen; keep the load running until the pod is gone",
        ),
        (
            Basis::UnseenExitCodes(vec![String::new(); 2]),
            "the exit codes of 2 pods were not seen; keep the load running until the pod is gone",
        ),
        (
            percentile(Some(39)),
            "bounds of the 90th percentile at 98.21 % confidence; 29 windows ended separately; 10 more terminations: an upper bound needs 39",
        ),
        (
            losses(Some(1)),
            "bounds at 99.14 % confidence from 3 terminations, of which 1 lost requests: neighbouring requests are correlated; 1 more termination like these would settle it",
        ),
        (
            losses(None),
            "bounds at 99.14 % confidence from 3 terminations, of which 1 lost requests: neighbouring requests are correlated; more terminations may settle it",
        ),
        (
            of_latency(LatencyBasis::Few { answers: 900, needed: 1000 }),
            "only 900 such requests were answered; p99_9 needs 1,000; run a longer load, or raise its rate",
        ),
        (
            pod(PodFact::NotReady),
            "pod pod-0 was not ready when the run ended; let the load run until the rollout has ended",
        ),
        (
            Basis::Sleep { windows: 28, outlasted: 28, longer: 0, more: Some(1) },
            "the sleep outlasts 28 of 28 windows; 0 certainly last longer; 1 more termination whose windows it \
             outlasts",
        ),
        (
            pod(PodFact::HookIsNoSleep),
            "the preStop hook of pod pod-0 is not a sleep, so its duration is unknown; use preStop: {sleep: {seconds: \
             N}}",
        ),
    ] {
        assert_eq!(reason(&open(basis)), wanted);
    }
    assert_eq!(open(Basis::NoEnd).observed, "at least 0.100 s");
    let figure = Figure { unit: Unit::Millis, low: None, value: None, high: None };
    let measured = Measured { figure, basis: Basis::NoWindow };
    let evidence = CheckEvidence::Limit { measured, limit: 1.0, side: LimitSide::Max, by_default: false };
    assert_eq!(check(CheckVerdict::Inconclusive, evidence).observed, "unknown");
}

#[test]
fn unmeasured_figure_states_reason_and_remedy() {
    for (basis, wanted) in [
        (Basis::NothingScheduled, "no request was scheduled; send a load"),
        (
            Basis::NoneOutside,
            "no request was sent outside terminations; keep the load running before the first termination",
        ),
        (Basis::NoneEndedInWatch, "no pod ended while the run watched; watch while pods end"),
        (Basis::NoTermination, "no termination was measured; end pods while the load runs"),
        (Basis::NoWindow, "no window was measured; end pods while new connections are made"),
        (
            pod(PodFact::SharesLosses),
            "pod pod-0 shares lost requests with other terminations; have responses name their pod (sidecar or pod header), or end pods one at a time",
        ),
        (
            pod(PodFact::NoFirstRequest),
            "the new pod pod-0 is not known to have answered a request; have responses name their pod (sidecar or pod \
             header), or let the load run longer",
        ),
        (
            pod(PodFact::NotGone),
            "the end of pod pod-0 was not seen; let the load run until the rollout has ended",
        ),
    ] {
        assert_eq!(reason(&open(basis)), wanted);
    }
}

#[test]
fn longest_window_names_owner() {
    let lasted = Some((0.7, WindowOwner::OneOf(1)));
    let longest = LongestWindow { windows: 3, unbounded: 1, lasted };
    let judged = |longest: &LongestWindow, verdict| {
        let figure = Figure { unit: Unit::Seconds, low: Some(0.7), value: None, high: None };
        let measured = Measured { figure, basis: Basis::LongestWindow(longest.clone()) };
        let evidence = CheckEvidence::Limit { measured, limit: 0.6, side: LimitSide::Max, by_default: false };
        in_words(&check(verdict, evidence))
    };
    let still = "still got new connections 0.700 s after its deletion";
    let fails = |longest: &LongestWindow| judged(longest, CheckVerdict::Fail);
    assert_eq!(fails(&longest), format!("no upper bound (limit at most 0.6 s): a pod {still}"));
    let of_six = LongestWindow { lasted: Some((0.7, WindowOwner::OneOf(6))), ..longest.clone() };
    assert_eq!(fails(&of_six), format!("no upper bound (limit at most 0.6 s): one of 6 pods {still}"));
    let open = judged(&longest, CheckVerdict::Inconclusive);
    assert!(open.contains(": 1 of 3 windows without an upper bound; a higher rate of new"), "{open}");
}

#[test]
fn passed_check_states_power_and_bounds() {
    let power = |number, are_groups| {
        let units = LossUnits { number, are_groups };
        limit_words::reason(&Basis::Power { share: 0.0981, confidence: 0.95, units })
    };
    assert_eq!(
        power(29, false),
        "a fault that loses requests in at least 9.81 % of the terminations shows in 95 % of the runs with 29 \
         terminations"
    );
    assert!(power(2, true).ends_with("of the runs with 2 groups of terminations"));
    let figure = Figure { unit: Unit::Share, low: Some(0.00031), value: Some(0.006), high: Some(0.01556) };
    let measured = Measured { figure, basis: Basis::Observed };
    let evidence = CheckEvidence::Limit { measured, limit: 0.02, side: LimitSide::Max, by_default: false };
    let passed = check(CheckVerdict::Pass, evidence);
    assert_eq!(in_words(&passed), "0.6 % (0.031 % to 1.56 %) (limit at most 2 %)");
    let figure = Figure { unit: Unit::Seconds, low: Some(4.4), value: None, high: Some(4.5) };
    let measured = Measured { figure, basis: Basis::NoEnd };
    let evidence = CheckEvidence::Limit { measured, limit: 5.0, side: LimitSide::Max, by_default: false };
    let passed = check(CheckVerdict::Pass, evidence);
    assert_eq!((&*passed.observed, &*passed.settle), ("4.400 s to 4.500 s", ""), "nothing to settle");
}

#[test]
fn default_check_names_replacing_limit() {
    let none = Figure { unit: Unit::Count, low: Some(0.0), value: Some(0.0), high: Some(0.0) };
    let written = |basis| {
        let measured = Measured { figure: none, basis };
        let evidence = CheckEvidence::Limit { measured, limit: 1.0, side: LimitSide::Min, by_default: true };
        in_words(&check(CheckVerdict::Fail, evidence))
    };
    assert_eq!(
        written(Basis::NoneEnded),
        "0 (limit at least 1): the run was meant to terminate pods, but none was terminated; terminations: {min: 0} allows it"
    );
    let ok = written(Basis::Outside { ok: 0, all: 9000 });
    let told =
        "0 of 9,000 requests outside terminations succeeded; requests: {ok: {min: SHARE}} sets another limit";
    assert!(ok.ends_with(told), "{ok}");
}

#[test]
fn inconclusive_check_of_invalid_run_states_reason() {
    let name = CheckName::Limit("terminations.planned".to_owned());
    let evidence = CheckEvidence::NotDone(vec![found("deletePod was not done"), found("drain was not done")]);
    let mut planned = Check { name, verdict: CheckVerdict::Fail, evidence, invalid: None };
    assert_eq!(
        in_words(&written(&planned)),
        "not all (limit all actions done): deletePod was not done; drain was not done"
    );
    planned.invalid = Some(vec!["the load fell behind".to_owned()]);
    planned.verdict = CheckVerdict::Inconclusive;
    assert_eq!(reason(&written(&planned)), "the measurement is invalid: the load fell behind");
}

#[test]
fn history_lists_unfit_runs() {
    let unfit = [
        UnfitRun::NotPassed,
        UnfitRun::Invalid,
        UnfitRun::Partial,
        UnfitRun::Differs(vec!["rate".to_owned()]),
    ];
    let left_out: BTreeMap<UnfitRun, usize> = unfit.map(|unfit| (unfit, 1)).into();
    assert_eq!(
        in_words(&check(CheckVerdict::Inconclusive, CheckEvidence::History { used: 3, left_out })),
        "3 (limit at least 5 valid runs that passed): too few to show how much runs differ; not counted: 1 did not \
         pass, 1 invalid, 1 partial, 1 with a different rate; 2 more runs"
    );
    let few = check(CheckVerdict::Inconclusive, CheckEvidence::FewRequestsASide(100));
    assert_eq!(in_words(&few), "100 (limit at least 299 per side): too few to detect a failure rate of 1 %");
}

#[test]
fn prediction_states_trend_and_doubt() {
    let of = |trend, doubt| {
        let evidence = CheckEvidence::Predicted(Prediction {
            unit: comparison::MetricUnit::Milliseconds,
            limit: 20.0,
            value: 30.0,
            earlier: vec![10.0, 12.0],
            trend,
            doubt,
        });
        in_words(&check(CheckVerdict::Inconclusive, evidence))
    };
    assert_eq!(
        of(Some(Trend { runs: 13, p: 1e-7 }), None),
        "30.00 ms (limit at most 20.00 ms): 2 runs: 10.00 ms to 12.00 ms; it got steadily worse over the last 13 runs \
         (Mann-Kendall test, p = 1.0e-7)"
    );
    let late = of(None, Some(LatencyDoubt::Lateness { now_ms: 31.0, usual_ms: 0.2 }));
    let told = "the load generator's machine may be the reason: 99 % of the requests were sent at most 31.0 ms late, \
                but usually at most 0.2 ms; run on a less busy machine";
    assert!(late.ends_with(told), "{late}");
    let few = of(None, Some(LatencyDoubt::FewMoments { share: 0.011, least: 0.004, allowed: 0.01 }));
    let told = "; a few moments decide this: 1.1 % of the answers took longer than the limit, but that varies so much \
                over time that the usual share may be 0.4 %; up to 1 % is allowed; run longer";
    assert!(few.ends_with(told), "{few}");
}

/// Returns the words for a figure that is allowed to be 10 % worse.
fn worse(
    verdict: CheckVerdict,
    now: Option<f64>,
    limit: Option<MarginLimit>,
    grounds: BaselineGrounds,
) -> String {
    let by = Margin::Share(Share(0.1));
    let worsening = Worsening { unit: Unit::Count, now, by, limit, grounds };
    in_words(&check(verdict, CheckEvidence::Worse(Box::new(worsening))))
}

#[test]
fn worse_limit_states_grounds() {
    use CheckVerdict::{Fail, Inconclusive, Pass};
    let without = |grounds| worse(Inconclusive, None, None, grounds);
    let limit = "unknown (limit at most 10% worse than the baseline)";
    assert_eq!(
        worse(Inconclusive, Some(5.0), None, BaselineGrounds::NoBaseline),
        "5 (limit at most 10% worse than the baseline): there is no baseline to compare with; rolldrop gate RUN \
         --baseline RUN|FILE|FOLDER"
    );
    let no_rollout = || NoFigure::Unbounded(Basis::NoRollout);
    let unknown = without(BaselineGrounds::Unknown(no_rollout()));
    assert_eq!(unknown, format!("{limit}: no rollout was measured; roll out a workload"));
    let few = BaselineGrounds::FewFigures {
        known: 0,
        runs: 6,
        needed: 5,
        without: Some(("a run".into(), no_rollout())),
    };
    assert_eq!(
        without(few),
        format!(
            "{limit}: 0 of the baseline's 6 runs have this figure (a run: no rollout was measured); at least 5 such runs"
        )
    );
    let allowed = Some(MarginLimit { allowed: 22.0, usual: 20.0 });
    let spread = BaselineGrounds::Spread { last: 25.0, runs: vec![18.0, 22.0], doubt: None };
    assert_eq!(
        worse(Fail, Some(26.0), allowed, spread),
        "26 (limit 22: 10% worse than 20): runs vary, so even a run that is worse by exactly the allowed amount \
         would have at most 25; 2 runs: 18 to 22"
    );
    let spread = BaselineGrounds::Spread { last: 25.0, runs: vec![18.0, 22.0], doubt: None };
    for (grounds, told) in [
        (spread, "; 2 runs: 18 to 22; use more runs in the baseline, or a wider limit"),
        (
            BaselineGrounds::ShareOfNothing(vec![0.0; 6]),
            ": 10% of 0 is not a limit; 6 runs: 0 to 0; set an absolute limit, such as worse: 200ms or worse: 5",
        ),
        (
            BaselineGrounds::FewToDiffer(1),
            ": a baseline of 1 run cannot show how much runs vary; use a baseline of at least 5 runs",
        ),
    ] {
        let open = worse(Inconclusive, Some(24.0), allowed, grounds);
        assert!(open.ends_with(told), "{open}");
    }
    let none = Some(MarginLimit { allowed: 0.0, usual: 0.0 });
    let after = worse(Pass, Some(2.0), none, BaselineGrounds::AfterNone { runs: 6, most: 3.0 });
    let told = "10% of 0 is not a limit: after 6 runs without any, the test of totals allows 3";
    assert!(after.ends_with(told), "{after}");
    let totals = |before, is_share_of_nothing, by_chance| {
        let grounds = BaselineGrounds::Totals { before, runs: 1, is_share_of_nothing, by_chance };
        worse(if by_chance.is_some() { Inconclusive } else { Fail }, Some(200.0), allowed, grounds)
    };
    let failed = totals(1, false, None);
    assert!(failed.ends_with(": 1 in 1 run, then 200; test of totals"), "{failed}");
    let open = totals(0, true, Some(5));
    let told = "10% of 0 is not a limit; 0 in 1 run, then 200; test of totals; with 5 figures tested, one such difference \
                is expected by chance; use a baseline of at least 5 runs";
    assert!(open.ends_with(told), "{open}");
}

#[test]
fn compared_row_becomes_check() {
    let row = ComparisonRow {
        metric: Metric::Dropped,
        unit: comparison::MetricUnit::PerTermination,
        baseline: Some(0.0),
        candidate: Some(16.0),
        change: None,
        p: None,
        verdict: None,
        method: Method::Totals {
            hits: [0, 96].map(|hits| Proportion { hits, n: 5_000 }),
            terminations: Some([1, 6]),
        },
        by_chance: None,
    };
    assert_eq!(
        in_words(&check(CheckVerdict::Fail, CheckEvidence::Row(Box::new(row)))),
        "16.00 per termination (limit not worse than 0.00 per termination): 0 of 5,000 (1 termination), then 96 of \
         5,000 (6 terminations); test of totals"
    );
}

#[test]
fn check_states_unknown_windows() {
    let consumer = "service web".to_owned();
    let mut row = ComparisonRow {
        metric: Metric::MeanWindow { mode: Mode::Isolated, consumer, is_only: true },
        unit: comparison::MetricUnit::Seconds,
        baseline: Some(0.5),
        candidate: None,
        change: None,
        p: None,
        verdict: None,
        method: Method::Unbounded { unbounded: 9, windows: 20 },
        by_chance: None,
    };
    let words = |row: &ComparisonRow| {
        in_words(&check(CheckVerdict::Inconclusive, CheckEvidence::Row(Box::new(row.clone()))))
    };
    let told = "unknown (limit not worse than 0.500 s): 9 of 20 windows have no upper bound";
    assert_eq!(words(&row), told);
    (row.baseline, row.candidate) = (None, Some(0.4));
    let told = "0.400 s (limit not worse than the baseline): 9 of 20 windows have no upper bound";
    assert_eq!(words(&row), told);
}
