//! Tests the sentences about facts that occur in no other synthetic run.

use super::super::{advice, invalid_words, measurement, objection, sentences, unbounded_words};
use super::*;
use rolldrop_explain::math::stats::share_upper;
use rolldrop_explain::model::account::{
    ConsumerClock, Doubt, Finding, HookRepair, Incomplete, Invalid, Loss, MeasuredQuantity, Measurement,
    Missing, NoRecommendation, Objection, Probe, RecommendationBasis, RecordContradiction, SleepAdvice,
};
use rolldrop_explain::model::{Severity, Unbounded};
use rolldrop_record::Phase;
use rolldrop_record::run_info::{Balances, BalancesBecause, Rows};

/// Returns the sentences of a finding, independent of a run.
fn of(finding: &Finding) -> (Severity, String, String) {
    let words = sentences(finding, &told(three_pods()));
    (finding.severity(), words.what, words.remedy)
}

#[test]
fn broken_target_finding_states_share() {
    let most_frequent = Some((Outcome::HttpError, 3000));
    let finding = Finding::NotWorking { ok: 1789, all: 2000, most_frequent };
    let words = sentences(&finding, &told(three_pods()));
    let what = "the target does not work: 1,789 of 2,000 requests outside terminations succeeded (89.5 %; at least 90 \
                % required)";
    assert_eq!(words.what, what);
    assert!(words.why.contains("http_error (3,000)"), "{}", words.why);
}

#[test]
fn unusable_proxy_rows_are_counted() {
    let each = [
        (
            Measurement::OtherRuns(900),
            Severity::Info,
            "ignored 900 requests that the proxies recorded with an id from another run",
        ),
        (
            Measurement::UnknownRequests(1),
            Severity::Warning,
            "ignored 1 request that the proxies recorded with an id from this run and a number that the load did not \
             record",
        ),
        (
            Measurement::EarlyRows(2),
            Severity::Warning,
            "ignored 2 rows that the proxies recorded with a time before the request was sent",
        ),
        (
            Measurement::LateRows(1),
            Severity::Info,
            "1 request was read by a proxy after ending for the client; the proxy's row is not counted",
        ),
        (
            Measurement::EntriesContradicted { disagreed: 2 },
            Severity::Warning,
            "2 answers came from a different pod than the one that the kernel sent the connection to",
        ),
        (
            Measurement::EntriesUnconfirmed { agreed: 3 },
            Severity::Warning,
            "the kernel's entries are not used: only 3 answers confirm them",
        ),
    ];
    for (measurement, severity, what) in each {
        let (of_severity, of_what, _) = of(&Finding::Measurement(measurement));
        assert_eq!((of_severity, of_what.as_str()), (severity, what));
    }
}

#[test]
fn hidden_retries_are_counted_by_pod() {
    let by_pod = vec![("web-2".into(), 2), ("web-1".into(), 1)];
    let words = measurement::measurement(&Measurement::Retried(by_pod));
    let what = "a gateway's retries hid 3 failures (web-2 2, web-1 1): another pod answered";
    assert_eq!(words.what, what);
}

#[test]
fn unknown_names_are_quoted_with_source() {
    let of = |header: &str, body: Option<&str>| {
        let (header, body) = (header.to_owned(), body.map(str::to_owned));
        let examples = vec!["edge-7".into()];
        let unmatched = Measurement::UnmatchedNames { answers: 12, header, body, examples, are_all: true };
        let words = measurement::measurement(&unmatched);
        (words.what, words.remedy)
    };
    let (what, remedy) = of("x-served-by", None);
    assert_eq!(what, "in x-served-by, 12 answers name a pod that the run did not watch, such as \"edge-7\"");
    assert!(remedy.starts_with("choose another header (--pod-header)"), "{remedy}");
    let (what, remedy) = of("rolldrop-pod", Some("pod=(.+)"));
    let expected = "in rolldrop-pod, or by \"pod=(.+)\" in the body, 12 answers name a pod that the run did not watch, \
                    such as \"edge-7\"";
    assert_eq!(what, expected);
    assert!(remedy.starts_with("choose another pattern (--pod-body)"), "{remedy}");
}

#[test]
fn unbounded_windows_share_one_sentence() {
    let open = |pod: &str| {
        let (observed_s, needed_s) = (0.02, 0.03);
        let why = Unbounded::LoadEnded { arrivals: Balances::Connections, observed_s, needed_s };
        (pod.to_owned(), why)
    };
    let words = unbounded_words::unbounded("service web", &[open("b"), open("c")], &[]);
    assert_eq!(words.what, "the windows of 2 pods for service web have no upper bound");
    assert!(words.why.starts_with("the load ended 0.020 s after"), "{}", words.why);
    let hole = Unbounded::RequestsMissing { from_s: 4.9, to_s: 5.001 };
    assert_eq!(unbounded_words::reason(&hole), "the record lacks requests from 4.900 s to 5.001 s");
}

#[test]
fn invalid_measurement_names_figure_and_limit() {
    let stood_still = |source: Option<&str>, to_s| Invalid::StoodStill {
        source: source.map(str::to_owned),
        from_s: 3.0,
        to_s,
    };
    let (resource, pod) = ("pods".to_owned(), "b".to_owned());
    let each = [
        (
            Invalid::Aborted("others changed spec.replicas".into()),
            "the run was aborted: others changed spec.replicas",
        ),
        (
            Invalid::NotAllSent { not_sent: 6, scheduled: 3000, limit: 0.001, by_reason: [].into() },
            "6 of 3,000 requests were not sent (0.2 %, limit 0.1 %)",
        ),
        (
            Invalid::FellBehind { lag_ms: 150.0, limit_ms: 100.0 },
            "1 % of the requests were sent at least 150 ms late (limit 100 ms): the load generator fell behind",
        ),
        (Invalid::NothingRecorded, "no request was recorded"),
        (
            Invalid::WatchGap { resource, pod, length_s: 0.7 },
            "the watch of pods saw nothing for 0.70 s while pod b ended",
        ),
        (
            Invalid::Drowned { measured: MeasuredQuantity::Windows(104.0), lag_ms: 80.0, limit_ms: 52.0 },
            "1 % of the requests were sent at least 80 ms late (limit 52 ms), which is too much compared with a median \
             window of 104 ms: the lag is the load generator's own",
        ),
        (
            Invalid::Busy { share: 1.0, limit: 0.95 },
            "CPU usage was 100 % on the machine that sent the load (limit 95 %): delays may be its own, not the \
             cluster's",
        ),
        (stood_still(Some("coordinator"), 7.0), "coordinator stalled for 4.0 s, from 3.0 to 7.0 s"),
        (stood_still(None, 9.0), "the embedded cluster stalled for 6.0 s, from 3.0 to 9.0 s"),
    ];
    for (reason, what) in each {
        assert_eq!(invalid_words::invalid(&reason), what);
        let remedy = invalid_words::not_valid(&reason).remedy;
        let is_stopped = matches!(reason, Invalid::StoodStill { .. });
        assert_eq!(remedy.contains("without stopping or suspending"), is_stopped, "{remedy}");
    }
}

#[test]
fn contradiction_finding_names_source_and_numbers() {
    let requests = |scheduled, rows| {
        let (source, phase) = ("load-0".to_owned(), Phase::Main);
        RecordContradiction::Requests { source, phase, scheduled, rows }
    };
    let each = [
        (requests(80, 100), "load-0 scheduled 80 requests in the counted part, but 100 have a row"),
        (
            RecordContradiction::Twice { source: "load-0".into(), requests: 20, first: 40 },
            "20 requests from load-0 have more than one row (the first is number 40): is a file in requests/ duplicated?",
        ),
        (
            RecordContradiction::Disordered { source: "load-0".into(), rows: 1, first: 7 },
            "1 row from load-0 has timestamps that are out of order (the first is number 7)",
        ),
        (
            RecordContradiction::DisorderedServed { proxy: "a".into(), rows: 1 },
            "1 row from proxy a has timestamps that are out of order",
        ),
        (
            RecordContradiction::Served { proxy: "a".into(), received: 100, rows: 120 },
            "100 rows from proxy a were received, but served/ has 120",
        ),
        (
            RecordContradiction::Impossible {
                proxy: "a".into(),
                impossible: 100,
                compared: 100,
                worst_s: 0.3,
            },
            "according to the timestamps, proxy a read 100 of 100 requests before they were sent or after they were \
             answered, by up to 0.300 s: its clock or the load's is wrong",
        ),
        (
            RecordContradiction::Untimely("load_started"),
            "load_started in events.jsonl is outside the time of the run and was ignored",
        ),
        (RecordContradiction::TooLate { days: 12 }, "requests ended more than 12 days after the load began"),
        (RecordContradiction::Clock("load-0".into()), "the clock samples of load-0 contradict each other"),
    ];
    for (found, what) in each {
        assert_eq!(invalid_words::invalid(&Invalid::Contradiction(found)), what);
    }
}

#[test]
fn missing_parts_are_listed_with_counts() {
    let rows = |recorded, known, in_flight, received| Rows { recorded, known, in_flight, received };
    let handed_over =
        |source: &str, rows, by_count| Missing::HandedOver { source: source.to_owned(), rows, by_count };
    let each = [
        (Missing::LoadStarted, "events.jsonl does not say when the load began (load_started)"),
        (Missing::LoadEnded, "events.jsonl does not say when the load ended (load_ended)"),
        (
            Missing::Scheduled("load-0".into()),
            "events.jsonl does not say how many requests load-0 scheduled (load_scheduled)",
        ),
        (Missing::ClockSample("a".into()), "events.jsonl has no clock comparison for a (clock_sample)"),
        (
            Missing::Requests { source: "load-0".into(), phase: Phase::Warmup, scheduled: 20, rows: 15 },
            "load-0 scheduled 20 requests in the warm-up, but 15 have a row",
        ),
        (
            handed_over("load-1", rows(None, 25_000, 12, 203), None),
            "rows arrived for 203 of at least 25,000 requests from load-1, mostly for those that were not ok, so all \
             shares overstate failures; 12 were in flight at its last report",
        ),
        (
            handed_over("load-2", rows(Some(25_000), 25_000, 0, 250), None),
            "rows arrived for 250 of 25,000 requests from load-2, mostly for those that were not ok, so all shares \
             overstate failures",
        ),
        (
            handed_over("load-0", rows(None, 900, 0, 300), Some([(Outcome::Ok, 600)].into())),
            "rows arrived for 300 of at least 900 requests from load-0, mostly for those that were not ok, so all \
             shares overstate failures; for requests without a row, only these counts arrived, which no figure \
             includes: 600 ok",
        ),
    ];
    for (part, what) in each {
        assert_eq!(invalid_words::incomplete(&Incomplete::Missing(part)), what);
    }
}

#[test]
fn interim_look_states_exact_confidence() {
    let look = |confidence| Finding::LookedAt { look: 4, most: 4, confidence, is_last: true };
    let what = "the gate was judged at look 4 of 4, with bounds at 99.14 % confidence";
    assert_eq!(of(&look(0.9914)).1, what);
    assert!(of(&look(0.99968)).1.contains("99.968 %"));
}

#[test]
fn zero_loss_bound_counts_independent_pods() {
    let why = |terminations, independent, confidence: f64| {
        let at_most = share_upper(0, independent, confidence);
        let lost = Finding::NothingLost { terminations, independent, confidence, at_most };
        sentences(&lost, &told(three_pods())).why
    };
    assert_eq!(
        why(30, 2, 0.95),
        "with 95 % confidence, at most 77.7 % of such terminations drop a request, as the pods left the rules in 2 \
         independent steps"
    );
    // Bounds are rounded up.
    assert_eq!(
        why(600, 600, 0.95),
        "with 95 % confidence, at most 0.499 % of such terminations drop a request"
    );
    assert!(
        why(85, 85, 0.9914).starts_with("with 99.14 % confidence, at most 5.45 % of"),
        "{}",
        why(85, 85, 0.9914)
    );
}

#[test]
fn loss_findings_include_remedy() {
    let lost = |by| sentences(&Finding::Lost { requests: 2, by }, &told(three_pods()));
    let sleep =
        SleepAdvice::AtLeast { hook: HookRepair::Unneeded, at_least_s: None, dns: None, grace_s: None };
    let remedy = lost(Loss::GatewayNoServer { sleep }).remedy;
    assert!(remedy.contains("healthCheckNodePort") && remedy.contains("(fall)"), "{remedy}");
    let doubts = vec![(Doubt::PodWasWell, 1), (Doubt::NothingNear, 1)];
    assert_eq!(
        lost(Loss::Unattributed(doubts)).why,
        "1 request: no pod that it could have reached was starting or terminating; 1 request: the pod that it reached \
         was not terminating, and nothing else explains the loss"
    );
    assert!(
        lost(Loss::NotReadyYet(Probe::TooEarly)).remedy.ends_with("(the current one succeeds too early)")
    );
    assert_eq!(
        lost(Loss::NotReadyYet(Probe::Missing)).remedy,
        "a readinessProbe that fails until the app serves"
    );
}

#[test]
fn termination_errors_have_error_severity() {
    let (severity, what, _) = of(&Finding::EndingErrors { answers: 60, requests: 3060, are_all_named: true });
    let told = "60 of 3,060 requests were answered with 5xx by terminating pods: the app closed its dependencies \
                before its listener";
    assert_eq!((severity, &*what), (Severity::Error, told));
}

#[test]
fn beat_objections_include_figures() {
    let each = [
        (Objection::TooFewChecks { made: 19, needed: 20 }, "19 times, and 20 are needed"),
        (Objection::NotBetween, "do not lie between"),
        (Objection::Disordered, "do not follow the order"),
        (Objection::NotANumber("x1".into()), "\"x1\" is not a number"),
    ];
    for (found, what) in &each {
        assert!(objection(found).contains(what), "{found:?}");
    }
}

#[test]
fn refusals_and_bases_include_reasons() {
    let clock = |period_s| ConsumerClock { consumer: "service web".into(), period_s, news_s: 0.1 };
    assert_eq!(advice::refusal(&NoRecommendation::NotWhole), "the record is incomplete");
    assert_eq!(advice::refusal(&NoRecommendation::NotValid), "the measurement is not valid");
    assert!(
        advice::refusal(&NoRecommendation::InPhase(clock(2.0)))
            .contains("at about the same phase of the 2 s")
    );
    let (covered, asked) = (0.05f64.powf(1.0 / 28.0), 0.9);
    let few =
        NoRecommendation::TooFew { windows: 28, units: 28, needed: 29, covered, asked, confidence: 0.95 };
    assert_eq!(
        advice::refusal(&few),
        "the longest window of 28 covers 89.8 % of future ones at 95 % confidence; 1 more is needed to claim 90 % \
         coverage"
    );
    let (windows, unbounded, margin_s, stopping_s) = (1, 0, 1, None);
    let basis = RecommendationBasis {
        longest_s: Some(0.1),
        windows,
        unbounded,
        clocks: vec![clock(5.0)],
        margin_s,
        stopping_s,
    };
    assert!(
        advice::basis(&basis).contains("service web may keep routing to a pod for the 5 s of its DNS cache")
    );
}

#[test]
fn finding_states_observation() {
    let because = BalancesBecause::GatewayStatus { status: 502, answers: 126 };
    let reset = Finding::Measurement(Measurement::ResetForRefused(1));
    for (finding, what) in [
        (Finding::Unsettled { waits: 1 }, "still being lost"),
        (reset, "1 request was reset where the app would have refused the connection"),
        (Finding::TakenForGateway { consumer: "web".into(), because }, "is treated as a gateway"),
    ] {
        assert!(of(&finding).1.contains(what), "{finding:?}");
    }
}
