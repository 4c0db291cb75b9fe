mod page;

use std::collections::BTreeSet;

use serde_json::Value;

use super::*;
use rolldrop_explain::model::{Mode, Stage, WindowBasis};
use rolldrop_judge::judgements::comparison::{
    Caveat, ChangeKind, Comparison, ComparisonRow, ComparisonSide, FigureChange, Judgement, LatencyKind,
    Method, Metric, MetricUnit, Quantile, SideChart,
};
use rolldrop_record::{Cause, Outcome};
use rolldrop_testing::schema::meets;

fn every_sample() -> [(&'static str, Analysis); 8] {
    [
        ("naive_exit", samples::naive_exit()),
        ("prestop_sleep", samples::prestop_sleep()),
        ("invalid", samples::invalid()),
        ("partial", samples::partial()),
        ("quiet", samples::quiet()),
        ("rollout", samples::rollout()),
        ("ten_thousand", samples::ten_thousand()),
        ("streams", samples::streams()),
    ]
}

#[test]
fn warning_states_invalid_and_partial() {
    let mut result = samples::invalid().result;
    assert!(words::warning(&result).is_some_and(|warning| !warning.contains("partial")));
    result.complete = false;
    assert!(words::warning(&result).is_some_and(|warning| {
        warning.ends_with("They are also partial: they cover only what was recorded.")
    }));
}

fn plain_text(analysis: &Analysis) -> String {
    text(analysis, &TextOptions { files: Some("runs/one".into()), ..TextOptions::default() })
}

#[test]
fn reports_contain_no_control_characters() {
    const HOSTILE: &str = "a\u{1b}[31mb\u{9b}1mc\u{7f}d\u{202e}e\u{2066}f\r\ng\u{7}\u{0}";
    let mut analysis = samples::naive_exit();
    let result = &mut analysis.result;
    let texts = [&mut result.scenario, &mut result.cluster.version, &mut result.cluster.namespace];
    let of_findings = result.findings.iter_mut().flat_map(|f| [&mut f.what, &mut f.why, &mut f.remedy]);
    let of_pods = result.terminations.iter_mut().map(|termination| &mut termination.pod);
    let of_checks = result.checks.iter_mut().flat_map(|check| [&mut check.observed, &mut check.why]);
    texts
        .into_iter()
        .chain(of_findings)
        .chain(of_pods)
        .chain(of_checks)
        .for_each(|text| text.push_str(HOSTILE));
    for lost in &mut analysis.lost {
        lost.target = HOSTILE.into();
    }
    let acts = |c: char| (c.is_control() && c != '\n') || ('\u{202a}'..='\u{2069}').contains(&c);
    let files = all(&analysis).expect("files");
    let texts = files.iter().filter(|file| !file.path.ends_with(".png"));
    let mut texts: Vec<(&str, String)> = texts
        .map(|file| (file.path.as_str(), String::from_utf8(file.bytes.clone()).expect("text")))
        .collect();
    texts.push(("text", plain_text(&analysis)));
    texts.push(("github", github(&analysis.result).log));
    texts.push(("comment", comment(&analysis.result)));
    texts.push(("prometheus", prometheus(&analysis.result)));
    for (form, text) in &texts {
        let found: Vec<char> = text.chars().filter(|c| acts(*c)).collect();
        assert!(found.is_empty(), "{form}: {found:?}");
        // Everything else must remain visible.
        assert!(text.contains("u{1b}") || text.contains("u\\{1b"), "{form}");
    }
    // A chart draws the text as given, so it would show a box for an invisible character.
    assert_eq!(as_shown(&analysis).result.scenario, shown::one_line(&analysis.result.scenario));
}

#[test]
fn text_report_shows_dropped_requests() {
    insta::assert_snapshot!(plain_text(&samples::naive_exit()), @"
    24 of 9,000 requests were dropped as 3 pods ended.
    All 24 were sent to the 3 terminating pods, within their endpoint-propagation windows.
      class  24 connect_refused: the connection was refused
      cause  24 routed_to_dead_pod: routed to a pod that no longer accepted connections
      remedy lifecycle: {preStop: {sleep: {seconds: 1}}}
             (for pods that end one at a time; suggested by 3 terminations, not proven)
      more   rolldrop explain routed_to_dead_pod
      run    rolldrop 0.1.0 · scenario naive-exit · 300 requests/s for 30 s · Kubernetes v1.36.2 ·
             userspace dataplane · 2 nodes · 3 endpoints

    TERMINATIONS   windows count from t0, when the deletion took effect
      pod                  mode      dropped  window            t0 within  exit
      web-7d4b9c6f5-2xkqp  isolated  8 of 17  0.118 to 0.160 s    0.011 s     0
      web-7d4b9c6f5-m8zrt  isolated  9 of 18  0.141 to 0.183 s    0.011 s     0
      web-7d4b9c6f5-vc4hd  isolated  7 of 16  0.098 to 0.140 s    0.011 s     0

    ENDPOINT-PROPAGATION WINDOW   how long new connections still went to a pod after its deletion
      service web (service proxy of this host): at least 0.098 to 0.141 s, depending on the pod, and at
      most 0.183 s (3 pods, isolated; median of the upper bounds 0.161 s)

    PRESTOP SLEEP   for pods that end one at a time
      This run is not enough for a recommendation. The longest window of 3 covers 37 % of future ones at
      95 % confidence; 26 more are needed to claim 90 % coverage. In the app's container: a preStop
      sleep of 1 s for pods that end one at a time (suggested by 3 terminations, not proven); it
      outlasts each of their windows.
          lifecycle: {preStop: {sleep: {seconds: 1}}}   # suggested, not proven

    LATENCY   response time of answered requests, from the intended send time
                                   requests          p50          p99          max
      steady                          8,100      1.21 ms      4.43 ms      24.6 ms
      while a pod ended                 720      1.94 ms      7.09 ms      39.4 ms
      longest time in which every request failed: 0.041 s

    FINDINGS
      error    24 new connections went to pods that no longer accepted any.
               The app exits on SIGTERM, about 0.08 s before the Service stops routing to it. Keep
               serving while endpoints propagate: lifecycle: {preStop: {sleep: {seconds: 1}}}
      info     3 terminations are few.
               A bound with 95 % confidence rests on the number of terminations, not of requests. Repeat
               the run with more terminations.

    CHECKS
      pass          dropped.min: observed 24, limit at least 1

    VALID: the generator kept its schedule and no recorder lost anything
      0 of 9,000 requests not sent (0 %); send lag p99 0.41 ms, max 2.31 ms
    Report: runs/one/report.html, charts in runs/one/charts
    ");
}

#[test]
fn text_report_shows_zero_drops() {
    insta::assert_snapshot!(plain_text(&samples::prestop_sleep()), @"
    0 of 9,000 requests were dropped as 3 pods ended.
      run    rolldrop 0.1.0 · scenario prestop-sleep · 300 requests/s for 30 s · Kubernetes v1.36.2 ·
             userspace dataplane · 2 nodes · 3 endpoints

    TERMINATIONS   windows count from t0, when the deletion took effect
      pod                  mode      dropped  window            t0 within  exit
      web-59c7d8b44-7hqwn  isolated   0 of 9  0.126 to 0.168 s    0.011 s     0
      web-59c7d8b44-fx2lk  isolated   0 of 9  0.126 to 0.168 s    0.011 s     0
      web-59c7d8b44-zzd9s  isolated   0 of 9  0.126 to 0.168 s    0.011 s     0

    ENDPOINT-PROPAGATION WINDOW   how long new connections still went to a pod after its deletion
      service web (service proxy of this host): at least 0.126 s and at most 0.168 s (3 pods, isolated;
      median of the upper bounds 0.168 s)

    PRESTOP SLEEP   for pods that end one at a time
      This run is not enough for a recommendation. The longest window of 3 covers 37 % of future ones at
      95 % confidence; 26 more are needed to claim 90 % coverage. Every window of pods that end one at a
      time ended within 1 s, and a longer sleep would not have saved any request that they lost: these
      terminations suggest no change.

    LATENCY   response time of answered requests, from the intended send time
                                   requests          p50          p99          max
      steady                          8,100      1.21 ms      4.43 ms      24.6 ms
      while a pod ended                 720      1.94 ms      7.09 ms      39.4 ms
      longest time in which every request failed: 0.041 s

    CHECKS
      pass          dropped.max: observed 0, limit at most 0
      inconclusive  windows.max: observed 0.126 to 0.168 s, limit at most 0.15 s; the limit lies between
                    the bounds; a higher rate of new connections

    VALID: the generator kept its schedule and no recorder lost anything
      0 of 9,000 requests not sent (0 %); send lag p99 0.41 ms, max 2.31 ms
    GATE INCONCLUSIVE: windows.max
    Report: runs/one/report.html, charts in runs/one/charts
    ");
}

#[test]
fn text_report_shows_partial_run() {
    insta::assert_snapshot!(plain_text(&samples::partial()), @"
    PARTIAL MEASUREMENT: the record is incomplete; the numbers cover only what was recorded. Interrupted
    8 s into the run.

    1 of 400 requests was dropped as 1 pod ended.
    It was sent to one terminating pod, within its endpoint-propagation window.
      class  1 connect_refused: the connection was refused
      cause  1 routed_to_dead_pod: routed to a pod that no longer accepted connections
      more   rolldrop explain routed_to_dead_pod
      run    rolldrop 0.1.0 · scenario shop · 50 requests/s for 8 s · Kubernetes v1.36.2 · userspace
             dataplane · 2 nodes · 3 endpoints

    TERMINATIONS   windows count from t0, when the deletion took effect
      pod         mode   dropped  window            t0 within  exit
      checkout-0  other  1 of 10  at least 0.200 s    0.011 s     –
      why    checkout-0: evicted by the kubelet on node node-1: The node was low on resource: memory.

    ENDPOINT-PROPAGATION WINDOW   how long new connections still went to a pod after its deletion
      service web (service proxy of this host): at least 0.200 s and no upper bound could be set (1 pod,
      other; 1 of 1 not fully bounded)
      1 window could not be fully bounded: the pod exited while it still got new connections

    PRESTOP SLEEP   for pods that end in another way
      This run is not enough for a recommendation. The only window is censored.

    LATENCY   response time of answered requests, from the intended send time
                                   requests          p50          p99          max
      steady                            360      1.21 ms      4.43 ms      24.6 ms
      while a pod ended                 240      1.94 ms      7.09 ms      39.4 ms
      longest time in which every request failed: 0.041 s

    PARTIAL: the record is incomplete; the numbers cover only what was recorded
      because  interrupted 8 s into the run
      0 of 400 requests not sent (0 %); send lag p99 0.41 ms, max 2.31 ms
    Report: runs/one/report.html, charts in runs/one/charts
    ");
}

#[test]
fn text_report_shows_quiet_run() {
    insta::assert_snapshot!(plain_text(&samples::quiet()), @r"
    0 of 4,000 requests were dropped; no pod ended during the run.
      run    rolldrop 0.1.0 · scenario watch · 200 requests/s for 20 s · Kubernetes v1.36.2 · userspace
             dataplane · 2 nodes · 3 endpoints

    LATENCY   response time of answered requests, from the intended send time
                                   requests          p50          p99          max
      steady                          3,600      1.21 ms      4.43 ms      24.6 ms
      longest time in which every request failed: 0.041 s

    VALID: the generator kept its schedule and no recorder lost anything
      0 of 4,000 requests not sent (0 %); send lag p99 0.41 ms, max 2.31 ms
    Report: runs/one/report.html, charts in runs/one/charts
    ");
}

#[test]
fn invalid_run_text_warns_first_and_last() {
    let text = plain_text(&samples::invalid());
    assert!(text.starts_with("INVALID MEASUREMENT: do not use these numbers. Send lag p99 412 ms"), "{text}");
    assert!(text.contains("\nINVALID: do not use these numbers\n  because  send lag p99"), "{text}");
}

#[test]
fn plain_text_fits_width_without_nan() {
    for (name, analysis) in every_sample() {
        for width in [80, 100] {
            let text = text(&analysis, &TextOptions { width, ..TextOptions::default() });
            for line in text.lines() {
                assert!(line.chars().count() <= width, "{name}: {line}");
                assert_eq!(line, line.trim_end(), "{name}");
            }
            assert!(!text.contains("NaN") && !text.contains("inf "), "{name}: {text}");
            assert!(!text.contains('\u{1b}'), "{name}: coloured without being asked");
        }
    }
}

#[test]
fn colour_leaves_text_unchanged() {
    let analysis = samples::prestop_sleep();
    let colored = text(&analysis, &TextOptions { color: true, ..TextOptions::default() });
    let mut stripped = String::new();
    let mut rest = colored.as_str();
    while let Some((before, after)) = rest.split_once('\u{1b}') {
        stripped.push_str(before);
        rest = after.split_once('m').unwrap().1;
    }
    stripped.push_str(rest);
    assert_eq!(stripped, text(&analysis, &TextOptions::default()));
    assert_ne!(stripped, colored);
}

#[test]
fn result_json_round_trips() {
    for (name, analysis) in every_sample() {
        let read: RunResult = serde_json::from_slice(&json(&analysis.result)).unwrap();
        // Not compared as a whole, because parsing may change the last digit of a fraction.
        assert_eq!(read.requests, analysis.result.requests, "{name}");
        assert_eq!(read.verdict, analysis.result.verdict, "{name}");
        assert_eq!(read.terminations.len(), analysis.result.terminations.len(), "{name}");
    }
}

#[test]
fn markdown_and_html_escape_hostile_names() {
    let mut analysis = samples::naive_exit();
    analysis.result.scenario = "<script>alert(1)</script> a|b".into();
    analysis.result.terminations[0].pod = "\"><img src=x>".into();
    analysis.result.terminations[0].disruption = None;
    analysis.result.terminations[0].cause = Some("<script>".parse().unwrap());
    let html = html(&analysis, &[]);
    // The page contains only its own script.
    assert!(html.matches("<script").count() == 1 && !html.contains("<img"), "{html}");
    assert!(html.contains("&lt;script&gt;"));
    let markdown = markdown(&analysis);
    assert!(markdown.starts_with("# rolldrop: &lt;script>alert(1)&lt;/script> a\\|b\n"), "{markdown}");
}

#[test]
fn markdown_escapes_mentions_and_links() {
    let escaped = crate::markdown::escape;
    assert_eq!(escaped("by @octocat, @org/team"), "by @\u{200b}octocat, @\u{200b}org/team");
    assert_eq!(
        escaped("see https://evil.example or www.evil.example"),
        "see https:\\//evil.example or www\\.evil.example"
    );
    assert_eq!(escaped("org/repo#12 #x"), "org/repo\\#\u{200b}12 \\#x");
    for plain in ["web@node1", "a @ b", "10:20", "a//b", "v1.2"] {
        assert_eq!(escaped(plain), plain);
    }
}

#[test]
fn report_contains_all_files() {
    let files = all(&samples::prestop_sleep()).unwrap();
    let paths: Vec<&str> = files.iter().map(|f| f.path.as_str()).collect();
    let charts = ["drops", "timeline", "traffic", "windows", "latency", "latency-heatmap"];
    let charts = charts.iter().map(|name| format!("charts/{name}.png"));
    let texts = ["result.json", "summary.md", "junit.xml", "report.html"].map(str::to_owned);
    assert_eq!(paths, texts.into_iter().chain(charts).collect::<Vec<_>>());
    for file in files.iter().filter(|f| f.path.ends_with(".png")) {
        let reader = png::Decoder::new(std::io::Cursor::new(&file.bytes)).read_info().unwrap();
        assert_eq!(reader.info().width, 1600, "{}", file.path);
    }
}

#[test]
fn only_runs_with_streams_report_streams() {
    for (name, analysis) in every_sample() {
        let charts: Vec<&str> = charts(&analysis).unwrap().iter().map(|chart| chart.name).collect();
        let page = html(&analysis, &[]);
        let (markdown, text) = (markdown(&analysis), plain_text(&analysis));
        for said in [
            charts.contains(&"streams.png"),
            charts.contains(&"survival.png"),
            page.contains("<h2 id=\"streams\">Streams</h2>"),
            markdown.contains("## Streams\n"),
            text.contains("\nSTREAMS\n"),
        ] {
            assert_eq!(said, name == "streams", "{name}: {charts:?}");
        }
    }
}

#[test]
fn stream_section_shows_phases_and_times() {
    let text = plain_text(&samples::streams());
    let section = text.split("\nSTREAMS\n").nth(1).unwrap().split("\n\nENDPOINT").next().unwrap();
    insta::assert_snapshot!(section, @"
      3,000 streams: 2,837 complete, 37 cut, 11 aborted by the app and 115 still open when the run
      ended. Up to 181 were open at the same time. The incomplete streams had delivered 6,869 events and
      439,616 bytes.
      At 6.67 streams per pod per second, one further termination would cut on average 35.04 (28.29 to
      39.99) with a preStop sleep of 5 s and a grace period of 20 s, as now (95 % bounds).

      By termination and phase. Told: the app ended it with a message. The last end counts from t0.
      pod                  at t0  later  phase           complete  told  cut  last end
      all 3 pods             157      0  before SIGTERM        80     0    0    20.0 s
                                         after SIGTERM         29    11   29
                                         at grace end           0     0    8
      web-7d4b9c6f5-2xkqp     52      0  before SIGTERM        28     0    0    20.0 s
                                         after SIGTERM         19     0    0
                                         at grace end           0     0    5
      web-7d4b9c6f5-m8zrt     54      0  before SIGTERM        30     0    0    20.0 s
                                         after SIGTERM         10    11    0
                                         at grace end           0     0    3
      web-7d4b9c6f5-vc4hd     51      0  before SIGTERM        22     0    0   5.000 s
                                         after SIGTERM          0     0   29

                                      number     p50     p99
      first event, steady              2,088  100 ms  100 ms
      first event, while a pod ended     912  100 ms  100 ms
      longest gap, steady              1,946  100 ms  100 ms
      longest gap, while a pod ended     891  100 ms  100 ms
    ");
    let markdown = markdown(&samples::streams());
    for line in [
        "| pod | at t0 | later | phase | complete | told | cut | last end |",
        "| web-7d4b9c6f5-m8zrt | 54 | 0 | before SIGTERM | 30 | 0 | 0 | 20.0 s |",
        "| web-7d4b9c6f5-m8zrt |  |  | after SIGTERM | 10 | 11 | 0 |  |",
        "| longest gap, steady | 1,946 | 100 ms | 100 ms |",
    ] {
        assert!(markdown.contains(&format!("\n{line}\n")), "{line}: {markdown}");
    }
}

#[test]
fn empty_analysis_still_yields_charts() {
    let mut analysis = samples::quiet();
    analysis.charts = Default::default();
    analysis.lost.clear();
    analysis.result.latency_ms = Default::default();
    let names: Vec<&str> = charts(&analysis).unwrap().iter().map(|chart| chart.name).collect();
    assert_eq!(names, ["timeline.png", "latency.png", "latency-heatmap.png"]);
}

#[test]
fn reports_handle_non_finite_numbers() {
    let mut analysis = samples::naive_exit();
    let [t0, t1, t2] = &mut analysis.result.terminations[..] else { panic!("three terminations") };
    t0.windows[0].upper_s = Some(f64::INFINITY);
    t1.windows[0].lower_s = Some(f64::NAN);
    t2.t0_s = f64::NAN;
    t2.timeline.insert(Stage::AppExited, f64::NAN);
    analysis.result.latency_ms.steady.p99 = f64::NAN;
    analysis.result.windows_s[0].max = Some(f64::INFINITY);
    analysis.result.load.duration_s = f64::INFINITY;
    analysis.charts.end_s = f64::INFINITY;
    analysis.lost[0].begun_s = f64::NAN;
    analysis.charts.seconds[3].p99_ms = Some(f64::NAN);
    analysis.charts.latency.steady[0].to_ms = f64::INFINITY;
    analysis.charts.heat.columns[0][0].to_ms = f64::INFINITY;
    let all = charts(&analysis).unwrap();
    let names: Vec<&str> = all.iter().map(|chart| chart.name).collect();
    let fitting = ["drops", "timeline", "traffic", "windows", "what-if", "latency", "latency-heatmap"];
    assert_eq!(names, fitting.map(|name| format!("{name}.png")));
    for ChartReading { text, .. } in all.iter().flat_map(|chart| &chart.readings) {
        assert!(!text.contains("NaN") && !text.contains("inf"), "{text}");
    }
    for text in [plain_text(&analysis), markdown(&analysis), html(&analysis, &[])] {
        assert!(!text.contains("NaN") && !text.contains("inf ") && !text.contains("inf<"), "{text}");
    }
}

const SCHEMA: &str = include_str!("../../../docs/result.schema.json");

#[test]
fn percentiles_of_few_requests_are_unknown() {
    let mut analysis = samples::naive_exit();
    analysis.result.latency_ms.disrupted.n = 40;
    let result = &analysis.result;
    let why = "– where too few requests were answered: p99 needs 100";
    let text = plain_text(&analysis);
    assert!(text.contains(why), "{text}");
    for page in [markdown::render(result), html::render(result, &[])] {
        assert!(page.contains(&format!("{why} and p99.9 needs 1,000.")), "{page}");
    }
    assert!(comment::render(result).contains(" | 4.43 ms | – |"), "{}", comment::render(result));
    let metrics = prometheus::render(result);
    for (percentile, is_shown) in [("90", true), ("99", false)] {
        let series = format!("part=\"disrupted\",percentile=\"{percentile}\"");
        assert_eq!(metrics.contains(&series), is_shown, "{metrics}");
    }
}

#[test]
fn every_result_matches_schema() {
    let schema: Value = serde_json::from_str(SCHEMA).unwrap();
    for (name, analysis) in every_sample() {
        let result: Value = serde_json::from_slice(&json(&analysis.result)).unwrap();
        if let Err(error) = meets(&result, &schema) {
            panic!("{name}: {error}");
        }
    }
    let mut extended = samples::naive_exit().result;
    extended.looks = Some(rolldrop_judge::spending::looks(4));
    extended.terminations[0].repetition = Some(1);
    assert_eq!(meets(&serde_json::from_slice(&json(&extended)).unwrap(), &schema), Ok(()));
    let mut broken: Value = serde_json::from_slice(&json(&samples::naive_exit().result)).unwrap();
    broken["terminations"][0]["surprise"] = Value::from(1);
    assert_eq!(meets(&broken, &schema), Err("$.terminations[0].surprise: not described".into()));
}

fn a_comparison() -> (Comparison, SideChart, SideChart) {
    let row = |metric, unit, baseline, candidate, change, verdict| ComparisonRow {
        metric,
        unit,
        baseline: Some(baseline),
        candidate: Some(candidate),
        change,
        p: Some(0.004),
        verdict,
        method: Method::Bootstrap { few: None, is_withheld: false },
        by_chance: None,
    };
    let latency = |quantile| Metric::Latency(LatencyKind::Response, quantile);
    let ratio =
        |estimate, lower, upper| Some(FigureChange { kind: ChangeKind::Ratio, estimate, lower, upper });
    let side = |name: &str, dropped| ComparisonSide {
        runs: [1, 2].map(|run| format!("{name}-{run}")).to_vec(),
        duration_s: 30.0,
        total: 6000,
        dropped,
        terminations: 3,
    };
    let (ms, same, worse) = (MetricUnit::Milliseconds, Some(Judgement::Same), Some(Judgement::Worse));
    let comparison = Comparison {
        verdict: Judgement::Worse,
        confidence: 0.95,
        tolerance: 0.05,
        baseline: side("before", 0),
        candidate: side("after", 16),
        differences: Vec::new(),
        caveats: vec![Caveat::Partial { run: "after-2".into(), why: vec!["a watch broke off".into()] }],
        rows: vec![
            row(Metric::Dropped, MetricUnit::Share, 0.0, 16.0 / 6000.0, None, None),
            row(latency(Quantile::P50), ms, 1.0, 1.02, ratio(1.02, 0.99, 1.04), same),
            row(latency(Quantile::P99), ms, 9.0, 12.1, ratio(1.344, 1.2, 1.51), worse),
        ],
    };
    let chart = |analysis: &Analysis| SideChart {
        latency: analysis.charts.latency.steady.clone(),
        marks_ms: vec![(0.5, "p50", 1.0), (0.99, "p99", 9.0)],
        dropped: analysis.charts.seconds.iter().map(|s| s.dropped.clone()).collect(),
        step_s: 1.0,
        windows_s: [(
            "web".to_owned(),
            analysis.result.terminations.iter().map(|t| t.windows[0].upper_s).collect(),
        )]
        .into(),
    };
    (comparison, chart(&samples::prestop_sleep()), chart(&samples::naive_exit()))
}

#[test]
fn comparison_renders_in_every_format() {
    let (comparison, before, after) = a_comparison();
    insta::assert_snapshot!(comparison_text(&comparison, &TextOptions::default()), @"
    Worse than the baseline: response time p99 +34 %.
      baseline  before-1 and before-2: 6,000 requests in 30.0 s, 0 dropped, 3 pods ended
      now       after-1 and after-2: 6,000 requests in 30.0 s, 16 dropped, 3 pods ended

    FIGURES   95 % intervals; 5 % chance of any false alarm; changes within 5 % count as the same
      figure             baseline      now                     change  verdict
      dropped requests        0 %  0.267 %                          –  –
      response time p50   1.00 ms  1.02 ms  +2.0 % (−1.0 % to +4.0 %)  same
      response time p99   9.00 ms  12.1 ms     +34 % (+20 % to +51 %)  worse

    HOW
      dropped requests: block bootstrap over time
      response time p50: block bootstrap over time
      response time p99: block bootstrap over time

    after-2 is partial: a watch broke off.
    ");
    let files = super::comparison(&comparison, &before, &after).unwrap();
    let paths: Vec<&str> = files.iter().map(|file| file.path.as_str()).collect();
    assert_eq!(paths, ["comparison.json", "comparison.md", "comparison.html", "charts/comparison.png"]);
    let text = |i: usize| String::from_utf8(files[i].bytes.clone()).unwrap();
    let row = "| response time p99 | 9.00 ms | 12.1 ms | +34 % (+20 % to +51 %) | worse |";
    assert!(text(1).contains(row), "{}", text(1));
    assert!(text(2).contains("class=\"worse\">worse<") && text(2).contains("data:image/png"), "{}", text(2));
    let schema: Value = serde_json::from_str(include_str!("../../../docs/comparison.schema.json")).unwrap();
    meets(&serde_json::from_str(&text(0)).unwrap(), &schema).unwrap();
}

#[test]
fn schema_lists_every_name() {
    let schema: Value = serde_json::from_str(SCHEMA).unwrap();
    let described = |def: &str| -> BTreeSet<String> {
        schema["$defs"][def]["enum"]
            .as_array()
            .unwrap()
            .iter()
            .map(|v| v.as_str().unwrap().to_owned())
            .collect()
    };
    let outcomes = Outcome::ALL.iter().map(|o| o.as_str().to_owned()).collect();
    assert_eq!(described("outcome"), outcomes);
    assert_eq!(described("window_basis"), WindowBasis::ALL.iter().map(|b| b.as_str().to_owned()).collect());
    assert_eq!(described("cause"), Cause::ALL.iter().map(|c| c.as_str().to_owned()).collect());
    for (def, names) in [
        ("mode", vec![Mode::Isolated.as_str(), Mode::Other.as_str()]),
        ("stage", vec![Stage::DeleteSent.as_str(), Stage::PodDeleted.as_str()]),
    ] {
        assert!(names.iter().all(|name| described(def).contains(*name)), "{def}");
    }
}
