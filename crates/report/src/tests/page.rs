//! Tests `report.html`, and the values that it shows for the charts.

use super::*;
use rolldrop_explain::model::{FindingText, PodSpan, Severity};

#[test]
fn html_is_self_contained() {
    let chart = Chart {
        name: "drops.png",
        title: "t".into(),
        alt: "what is seen".into(),
        png: vec![1, 2, 3],
        readings: vec![ChartReading { area: [1, 2, 3, 4], text: "<b> \"5\"".into() }],
    };
    for (name, analysis) in every_sample() {
        let html = html(&analysis, std::slice::from_ref(&chart));
        assert!(html.contains("<img src=\"data:image/png;base64,AQID\" alt=\"what is seen\">"), "{name}");
        assert!(html.contains("data-readings=\"1 2 3 4 &lt;b&gt; &quot;5&quot;\""), "{name}");
        for forbidden in
            ["http://", "https://", "<script ", "<link", "url(", "@import", "fetch(", "XMLHttpRequest"]
        {
            assert!(!html.contains(forbidden), "{name}: {forbidden}");
        }
        assert_eq!(html.matches("<script>").count(), 1, "{name}");
        for tag in [
            "button", "nav", "table", "tbody", "tr", "td", "th", "p", "h2", "dl", "pre", "figure", "main",
            "body",
        ] {
            let [open, close] = [format!("<{tag}"), format!("</{tag}>")];
            let opened =
                html.matches(&format!("{open}>")).count() + html.matches(&format!("{open} ")).count();
            assert_eq!(opened, html.matches(&close).count(), "{name}: <{tag}>");
        }
    }
}

#[test]
fn page_starts_with_verdict_and_remedy() {
    let page = html(&samples::naive_exit(), &[]);
    let order = [
        "passed</strong> The run passed 1 check.",
        "24 of 9,000 requests were dropped as 3 pods ended.",
        "<strong>Cause: </strong>routed to a pod that no longer accepted connections.",
        "<pre id=\"remedy\" tabindex=\"0\">lifecycle: {preStop: {sleep: {seconds: 1}}}</pre>",
        "<button class=\"copy\" type=\"button\" data-of=\"remedy\">Copy</button>",
        "<nav aria-label=\"Contents\">",
        "<h2 id=\"terminations\">",
    ];
    let found: Vec<usize> =
        order.iter().map(|part| page.find(part).unwrap_or_else(|| panic!("{part}\n{page}"))).collect();
    assert!(found.is_sorted(), "{found:?}");
}

#[test]
fn page_links_lead_to_sections() {
    for (name, analysis) in every_sample() {
        let page = html(&analysis, &charts(&analysis).unwrap());
        for link in page.split("href=\"#").skip(1).filter_map(|rest| rest.split('"').next()) {
            assert_eq!(page.matches(&format!(" id=\"{link}\"")).count(), 1, "{name}: {link}");
        }
    }
}

#[test]
fn terminations_table_sorts_numerically_and_unfolds() {
    let analysis = samples::rollout();
    let page = html(&analysis, &[]);
    for (i, t) in analysis.result.terminations.iter().enumerate() {
        assert!(page.contains(&format!("aria-controls=\"termination-{i}\"")), "{i}");
        assert!(page.contains(&format!("<tr class=\"detail\" id=\"termination-{i}\">")), "{i}");
        let dropped =
            format!("data-value=\"{}\">{}</td>", t.requests.dropped.estimate, t.requests.dropped.at_most);
        assert!(page.contains(&dropped), "{dropped}");
    }
    assert_eq!(page.matches("<tbody><tr><th scope=\"row\"><button class=\"unfold\"").count(), 12);
}

#[test]
fn termination_details_show_windows_and_stages() {
    let analysis = samples::naive_exit();
    let page = html(&analysis, &[]);
    for t in &analysis.result.terminations {
        let (_, rest) = page.split_once(&format!("</span>{}</button>", t.pod)).unwrap();
        let (row, _) = rest.split_once("</tbody>").unwrap();
        for window in &t.windows {
            assert!(row.contains(&format!("window of {}</span>", window.consumer)), "{row}");
            assert!(row.contains(&words::window(window)), "{row}");
        }
        let stages = t.timeline.values().filter(|at| at.is_finite()).count();
        assert_eq!(row.matches("<i class=\"at\"").count(), stages, "{row}");
    }
}

#[test]
fn findings_with_same_remedy_fold() {
    let mut analysis = samples::naive_exit();
    let open = |i: usize| FindingText {
        cause: None,
        severity: Severity::Warning,
        what: format!("the window of pod web-{i} has no upper bound"),
        why: format!("it exited {i} s after t0"),
        remedy: "raise the rate".into(),
        kind: None,
    };
    analysis.result.findings = (0..3).map(open).collect();
    assert!(!html(&analysis, &[]).contains("<details>"));
    analysis.result.findings = (0..7).map(open).collect();
    let page = html(&analysis, &[]);
    assert_eq!(page.matches("<dd class=\"remedy\">Raise the rate.").count(), 1, "{page}");
    assert!(page.contains("<summary>6 more with the same remedy</summary>"), "{page}");
    assert!(
        (0..7).all(|i| page.contains(&format!("The window of pod web-{i} has no upper bound."))),
        "{page}"
    );
}

#[test]
fn large_page_stays_below_5_mib() {
    let analysis = samples::many(300);
    let page = html(&analysis, &charts(&analysis).unwrap());
    assert_eq!(page.matches("class=\"unfold\"").count(), 300);
    assert!(page.len() < 5 << 20, "{} bytes", page.len());
}

#[test]
fn chart_readings_match_drawn_values() {
    let analysis = samples::naive_exit();
    let all = charts(&analysis).unwrap();
    let told = |name: &str| -> Vec<&str> {
        let chart = all.iter().find(|chart| chart.name == name).unwrap();
        let reader = png::Decoder::new(std::io::Cursor::new(&chart.png)).read_info().unwrap();
        let (width, height) = (reader.info().width, reader.info().height);
        for ChartReading { area: [left, top, w, h], text } in &chart.readings {
            let is_inside = *left >= 0 && *top >= 0 && *w >= 0 && *h >= 0;
            let [right, bottom] = [left + w, top + h].map(|v| u32::try_from(v).unwrap());
            assert!(
                is_inside && right <= width && bottom <= height && !text.contains('\n'),
                "{name}: {text}"
            );
        }
        chart.readings.iter().map(|reading| reading.text.as_str()).collect()
    };
    // Each lost request is in exactly one bin of the drops, and in one second of the timeline.
    let lost = |name: &str| -> u64 {
        let of = |text: &str| text.split_once(" connect_refused")?.0.rsplit(' ').next()?.parse::<u64>().ok();
        told(name).into_iter().filter_map(of).sum()
    };
    let refused = analysis.result.requests.by_outcome[&Outcome::ConnectRefused];
    assert_eq!([lost("drops.png"), lost("timeline.png")], [refused; 2]);
    let answered = |text: &str| text.split_once(" answered")?.0.rsplit(' ').next()?.parse::<u64>().ok();
    let ok: u64 = told("timeline.png").into_iter().filter_map(answered).sum();
    assert_eq!(ok, analysis.result.requests.ok);
    let window = &analysis.result.terminations[0].windows[0];
    let said = format!("{}: window {}", window.consumer, words::window(window));
    assert!(told("windows.png").contains(&said.as_str()), "{:?}", told("windows.png"));
    assert!(told("what-if.png").iter().all(|text| text.starts_with("sleep of ")));
    let slowest = format!(" below {} ms", format::millis(analysis.result.latency_ms.steady.max));
    assert!(told("latency.png").iter().any(|text| text.ends_with(&slowest)), "{:?}", told("latency.png"));
}

#[test]
fn first_chart_suits_run() {
    let first = |analysis: &Analysis| {
        let page = html(analysis, &charts(analysis).unwrap());
        let (_, rest) = page.split_once("alt=\"").unwrap();
        rest.split('"').next().unwrap().to_owned()
    };
    assert!(first(&samples::naive_exit()).starts_with("Dropped requests by class"));
    assert!(first(&samples::quiet()).starts_with("Requests answered and dropped over the run"));
    let mut rollout = samples::rollout();
    let pod = |i: usize| PodSpan { termination: Some(i), name: format!("web-{i}"), ..PodSpan::default() };
    rollout.charts.pods = (0..12).map(pod).collect();
    assert!(first(&rollout).starts_with("Pods over the run by phase"));
}
