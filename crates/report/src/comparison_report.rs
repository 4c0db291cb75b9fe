//! Renders a comparison as text, JSON, Markdown and HTML. All formats have the same table.

mod comparison_words;

pub(crate) use comparison_words::{ComparisonText, incomparable};

use super::format::{NONE, count, counted, list, millis, or_none, percent, plain, seconds_unit, with_unit};
use super::html::{self, HtmlCell};
use super::markdown::{escape, section, table};
use super::summary::{Paint, TextPage, columns};
use super::{Chart, ReportFile, TextOptions};
use comparison_words::RowText;
use rolldrop_judge::judgements::comparison::{
    ChangeKind, ComparisonSide, FigureChange, Judgement, MetricUnit,
};

const COLUMNS: [&str; 6] = ["figure", "baseline", "now", "change", "verdict", "how"];

/// Returns all files: `comparison.json`, `comparison.md`, `comparison.html` and the chart.
pub(super) fn files(comparison: &ComparisonText, chart: Chart) -> Vec<ReportFile> {
    vec![
        ReportFile::new("comparison.json", json(comparison)),
        ReportFile::new("comparison.md", markdown(comparison)),
        ReportFile::new("comparison.html", html(comparison, std::slice::from_ref(&chart))),
        chart.file("charts/"),
    ]
}

/// Renders `comparison.json`, as `docs/comparison.schema.json` describes it.
pub(super) fn json(comparison: &ComparisonText) -> Vec<u8> {
    let mut bytes = serde_json::to_vec_pretty(comparison).expect("plain data with names as keys");
    bytes.push(b'\n');
    bytes
}

/// Returns the conclusion in one sentence.
pub(super) fn headline(comparison: &ComparisonText) -> String {
    let told = |verdict| {
        let rows = comparison.rows.iter().filter(move |row| row.verdict == Some(verdict));
        rows.map(|row| match row.change.as_ref() {
            Some(change) => format!("{} {}", row.label, amount(change, change.estimate)),
            None => {
                format!("{} {} instead of {}", row.label, value(row, row.candidate), value(row, row.baseline))
            }
        })
        .collect::<Vec<_>>()
    };
    let (worse, better) = (told(Judgement::Worse), told(Judgement::Better));
    let also = if better.is_empty() { String::new() } else { format!(" Better: {}.", list(&better)) };
    match comparison.verdict {
        Judgement::Worse => format!("Worse than the baseline: {}.{also}", list(&worse)),
        Judgement::Better => format!("Better than the baseline: {}.", list(&better)),
        Judgement::Same => "The same as the baseline.".to_owned(),
        Judgement::CannotTell => {
            "Inconclusive: this comparison shows neither a change nor its absence.".to_owned()
        }
    }
}

fn side(side: &ComparisonSide) -> String {
    let ended = match side.terminations {
        0 => String::new(),
        n => format!(", {} ended", counted(n as u64, "pod")),
    };
    format!(
        "{}: {} in {}, {} dropped{ended}",
        list(&side.runs),
        counted(side.total, "request"),
        seconds_unit(side.duration_s),
        count(side.dropped)
    )
}

fn value(row: &RowText, value: Option<f64>) -> String {
    let Some(value) = value else { return NONE.to_owned() };
    match row.unit {
        MetricUnit::Share => percent(value),
        MetricUnit::Count => plain(value),
        MetricUnit::PerTermination => format!("{} per termination", plain(value)),
        MetricUnit::Seconds => seconds_unit(value),
        MetricUnit::Milliseconds => with_unit(millis(value), "ms"),
        MetricUnit::PerSecond => with_unit(plain(value), "/s"),
    }
}

/// Formats a change as `+12 %`, or as a difference in percentage points.
fn amount(change: &FigureChange, value: f64) -> String {
    let (points, unit) = match change.kind {
        ChangeKind::Ratio => ((value - 1.0) * 100.0, "%"),
        ChangeKind::Difference => (value * 100.0, "points"),
    };
    let decimals = usize::from(points.abs() < 9.95);
    with_unit(
        if points.is_finite() {
            format!("{points:+.decimals$}").replace('-', "−")
        } else {
            NONE.to_owned()
        },
        unit,
    )
}

fn change(row: &RowText) -> String {
    or_none(row.change.as_ref(), |change| {
        let [estimate, lower, upper] =
            [change.estimate, change.lower, change.upper].map(|value| amount(change, value));
        format!("{estimate} ({lower} to {upper})")
    })
}

/// Returns a row's cells, except the one that explains the judgement.
fn cells(row: &RowText) -> [String; 5] {
    let (baseline, candidate) = (value(row, row.baseline), value(row, row.candidate));
    [row.label.clone(), baseline, candidate, change(row), verdict(row).to_owned()]
}

fn verdict(row: &RowText) -> &'static str {
    match row.verdict {
        Some(Judgement::CannotTell) => "inconclusive",
        Some(verdict) => verdict.as_str(),
        None => NONE,
    }
}

fn note(comparison: &ComparisonText) -> String {
    format!(
        "{:.0} % intervals; {:.0} % chance of any false alarm; changes within {:.0} % count as the same",
        comparison.confidence * 100.0,
        (1.0 - comparison.confidence) * 100.0,
        comparison.tolerance * 100.0
    )
}

/// Returns additional remarks, as sentences.
fn besides(comparison: &ComparisonText) -> Vec<String> {
    let differences = comparison.differences.iter().map(|d| {
        format!("not comparable: {} was {} in the baseline and is {} now", d.what, d.baseline, d.candidate)
    });
    differences.chain(comparison.caveats.iter().cloned()).map(|s| super::words::sentence(&s)).collect()
}

pub(super) fn text(comparison: &ComparisonText, options: &TextOptions) -> String {
    let mut page = TextPage::new(options);
    let paint = match comparison.verdict {
        Judgement::Worse => Paint::Bad,
        Judgement::Better => Paint::Good,
        Judgement::Same | Judgement::CannotTell => Paint::Bold,
    };
    page.paragraph("", 0, Some(paint), &headline(comparison));
    page.paragraph("  baseline", 12, None, &side(&comparison.baseline));
    page.paragraph("  now", 12, None, &side(&comparison.candidate));
    page.heading("FIGURES", &note(comparison));
    let header: [String; 5] = std::array::from_fn(|i| COLUMNS[i].to_owned());
    let rows: Vec<[String; 5]> = std::iter::once(header).chain(comparison.rows.iter().map(cells)).collect();
    for line in columns(&rows, &[1, 2, 3]) {
        page.line(&format!("  {line}"));
    }
    page.heading("HOW", "");
    for row in &comparison.rows {
        page.paragraph("", 2, None, &format!("{}: {}", row.label, row.why));
    }
    for sentence in besides(comparison) {
        page.line("");
        page.paragraph("", 0, Some(Paint::Caution), &sentence);
    }
    if let Some(files) = &options.files {
        let directory = files.trim_end_matches('/');
        page.line("");
        page.line(&format!("Comparison: {directory}/comparison.html, chart in {directory}/charts"));
    }
    page.out
}

pub(super) fn markdown(comparison: &ComparisonText) -> String {
    let mut out = String::new();
    section(&mut out, "# rolldrop: comparison");
    section(&mut out, &format!("**{}**", escape(&headline(comparison))));
    section(
        &mut out,
        &format!(
            "- baseline: {}\n- now: {}",
            escape(&side(&comparison.baseline)),
            escape(&side(&comparison.candidate))
        ),
    );
    let rows = comparison.rows.iter().map(|row| {
        let cells = cells(row).into_iter().chain([row.why.clone()]);
        cells.map(|cell| escape(&cell)).collect()
    });
    table(&mut out, &COLUMNS, &[1, 2, 3], rows);
    let besides: Vec<String> = besides(comparison).iter().map(|s| format!("> {}", escape(s))).collect();
    section(&mut out, &besides.join("\n>\n"));
    section(&mut out, &format!("<sub>{}</sub>", escape(&note(comparison))));
    out
}

/// Renders the comparison as a self-contained page.
pub(super) fn html(comparison: &ComparisonText, charts: &[Chart]) -> String {
    let rows = comparison.rows.iter().map(|row| {
        let [label, baseline, candidate, change, _] = cells(row);
        let mut cells = vec![HtmlCell::head(&label)];
        cells.extend([baseline, candidate, change].map(HtmlCell::number));
        cells.push(row.verdict.map_or_else(|| HtmlCell::text(NONE), |_| HtmlCell::word(verdict(row))));
        cells.push(HtmlCell::text(&row.why));
        cells
    });
    let figures = html::table("Figures", &super::words::sentence(&note(comparison)), &COLUMNS, rows);
    let body = maud::html! {
        @for difference in besides(comparison).iter().take(comparison.differences.len()) {
            p.alarm role="alert" { (difference) }
        }
        p.answer { (headline(comparison)) }
        @for (name, of) in [("Baseline", &comparison.baseline), ("Now", &comparison.candidate)] {
            p { strong { (name) } ": " (side(of)) }
        }
        @for chart in charts { (html::figure(chart)) }
        (figures)
        @for caveat in &comparison.caveats {
            p { (super::words::sentence(caveat)) }
        }
    };
    html::page("rolldrop: comparison", &body, concat!("rolldrop ", env!("CARGO_PKG_VERSION")))
}
