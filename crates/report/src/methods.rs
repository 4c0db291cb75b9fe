//! Puts the figures of a comparison, and how they were judged, into words.

use crate::finding_words::unbounded_words::unbounded_of;
use crate::format::{count, counted, len, percent, percent_up};
use rolldrop_judge::judgements::comparison::{
    ComparisonRow, DisjointLatencies, FEWEST_BEYOND, Method, Metric, MetricUnit, Proportion,
};
use rolldrop_record::Mode;

pub(crate) const ONE_RUN: &str = "one run per side cannot show how much runs vary; give each side several runs, \
                                  alternating between the sides";

/// Returns the displayed name of a figure.
pub(crate) fn label(metric: &Metric) -> String {
    match metric {
        Metric::Dropped => "dropped requests".to_owned(),
        Metric::AppErrors => "app errors".to_owned(),
        Metric::WithDrops(mode) => format!("{} with a drop ({mode})", units(*mode)),
        Metric::DropsEach(mode @ Mode::Isolated) => format!("drops per termination ({mode})"),
        Metric::DropsEach(mode) => format!("drops per episode of overlapping terminations ({mode})"),
        Metric::MeanWindow { mode, is_only: true, .. } => format!("window ({mode})"),
        Metric::MeanWindow { mode, consumer, .. } | Metric::MedianWindow { mode, consumer } => {
            format!("window, {consumer} ({mode})")
        }
        Metric::Latency(kind, quantile) => format!("{kind} time {quantile}"),
        Metric::Rate => "requests sent".to_owned(),
    }
}

/// Names the units whose requests are lost together when pods end in this mode.
const fn units(mode: Mode) -> &'static str {
    match mode {
        Mode::Isolated => "terminations",
        _ => "episodes of overlapping terminations",
    }
}

/// Formats a value with its unit.
pub(crate) fn write(unit: MetricUnit, value: f64) -> String {
    match unit {
        MetricUnit::Share => percent(value),
        MetricUnit::Count => format!("{value:.2}"),
        MetricUnit::PerTermination => format!("{value:.2} per termination"),
        MetricUnit::Seconds => format!("{value:.3} s"),
        MetricUnit::Milliseconds => format!("{value:.2} ms"),
        MetricUnit::PerSecond => format!("{value:.1}/s"),
    }
}

/// Describes how a row was judged, or why it is inconclusive.
pub(crate) fn how(row: &ComparisonRow) -> String {
    let mut how = method(&row.method);
    how.extend(row.by_chance.map(by_chance));
    how
}

/// Returns a note for a row or check whose figure differs only when tested alone.
pub(crate) fn by_chance(figures: usize) -> String {
    format!("; with {figures} figures tested, one such difference is expected by chance")
}

/// States that the latencies of two sides do not overlap.
pub(crate) fn apart(DisjointLatencies { faster_ms, slower_ms }: DisjointLatencies) -> String {
    format!(
        "the latencies of the two sides do not overlap: 99 % were at most {faster_ms:.2} ms on one side and at least \
         {slower_ms:.2} ms on the other"
    )
}

fn method(method: &Method) -> String {
    let requests = |[a, b]: [Proportion; 2]| {
        format!("{} of {}, then {} of {}", count(a.hits), count(a.n), count(b.hits), count(b.n))
    };
    let hits = |[a, b]: [Proportion; 2]| format!("{} of {}, then {} of {}", a.hits, a.n, b.hits, b.n);
    let over = |[a, b]: [usize; 2], block_s: f64| format!("{a} and {b} blocks of {block_s:.1} s");
    match *method {
        Method::Totals { hits, terminations: None } => format!("{}; test of totals", requests(hits)),
        Method::Totals { hits: [a, b], terminations: Some([ended_a, ended_b]) } => {
            let side = |of: Proportion, ended| {
                format!("{} of {} ({})", count(of.hits), count(of.n), counted(ended, "termination"))
            };
            format!("{}, then {}; test of totals", side(a, ended_a), side(b, ended_b))
        }
        Method::ByTermination(sides) => format!("{}; judged by termination", requests(sides)),
        Method::NoneLost { blocks, block_s, missed } => format!(
            "neither side lost any; over {}, losses in up to {} of them may have been missed",
            over(blocks, block_s),
            percent_up(missed)
        ),
        Method::LostTogether { block_s, needed_s } => format!(
            "requests were lost in bursts of about {block_s:.1} s; each side needs at least {needed_s:.0} s"
        ),
        Method::BlockPermutation { blocks, block_s } => {
            format!("permutation test over {}", over(blocks, block_s))
        }
        Method::OneSideNone(sides) => format!("{}; one side has none to compare", hits(sides)),
        Method::Fisher { hits: sides, needed } => {
            let needed = needed
                .map(|n| format!(" (with {n} per side, such a difference shows in four of five cases)"));
            format!("{}; Fisher's exact test{}", hits(sides), needed.unwrap_or_default())
        }
        Method::EpisodePermutation { episodes: [a, b], mode } => {
            format!("permutation test over {a} and {b} {}", units(mode))
        }
        Method::WindowPermutation { episodes: [a, b], mode } => {
            format!("mean upper bounds; permutation test over {a} and {b} {}", units(mode))
        }
        Method::Unbounded { unbounded: 0, .. } => "one side has no window".to_owned(),
        Method::Unbounded { unbounded, windows } => unbounded_of(len(unbounded), len(windows)),
        Method::FewBeyond(beyond) => {
            format!(
                "about {beyond:.0} answers on one side lie beyond this percentile; {FEWEST_BEYOND} are needed"
            )
        }
        Method::Apart(bounds) => apart(bounds),
        Method::OneRun => ONE_RUN.to_owned(),
        Method::Schedule => "set by the schedule".to_owned(),
        Method::Correlated { block_s, needed_s } => {
            format!("requests within {block_s:.1} s are correlated; each side needs at least {needed_s:.0} s")
        }
        Method::Bootstrap { few, is_withheld } => {
            let mut how = "block bootstrap over time".to_owned();
            how.extend(few.map(|blocks| {
                format!(", over only {blocks:.0} blocks: a rough interval; a longer run improves it")
            }));
            if is_withheld {
                how.push_str(&format!("; these runs differ, but {ONE_RUN}"));
            }
            how
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rolldrop_judge::judgements::comparison::{LatencyKind, Quantile};

    #[test]
    fn labels_describe_figures() {
        let web = || "service web".to_owned();
        for (metric, wanted) in [
            (Metric::WithDrops(Mode::Isolated), "terminations with a drop (isolated)"),
            (Metric::DropsEach(Mode::Rollout), "drops per episode of overlapping terminations (rollout)"),
            (
                Metric::MeanWindow { mode: Mode::Rollout, consumer: web(), is_only: false },
                "window, service web (rollout)",
            ),
            (Metric::MeanWindow { mode: Mode::Rollout, consumer: web(), is_only: true }, "window (rollout)"),
            (Metric::Latency(LatencyKind::Service, Quantile::P99_9), "service time p99.9"),
        ] {
            assert_eq!(label(&metric), wanted);
        }
    }

    #[test]
    fn method_states_figures() {
        let few = Method::Bootstrap { few: Some(8.4), is_withheld: true };
        let told = "block bootstrap over time, over only 8 blocks: a rough interval; a longer run improves it; these \
                    runs differ, but one run per side";
        assert!(method(&few).starts_with(told), "{}", method(&few));
        let hits = [0, 1].map(|hits| Proportion { hits, n: 1 });
        assert_eq!(
            method(&Method::Fisher { hits, needed: Some(4) }),
            "0 of 1, then 1 of 1; Fisher's exact test (with 4 per side, such a difference shows in four of five cases)"
        );
        assert_eq!(
            method(&Method::FewBeyond(6.0)),
            "about 6 answers on one side lie beyond this percentile; 10 are needed"
        );
        assert_eq!(
            method(&Method::NoneLost { blocks: [30, 40], block_s: 0.1, missed: 0.095 }),
            "neither side lost any; over 30 and 40 blocks of 0.1 s, losses in up to 9.5 % of them may have been missed"
        );
        assert_eq!(
            method(&Method::Unbounded { unbounded: 9, windows: 20 }),
            "9 of 20 windows have no upper bound"
        );
        assert_eq!(method(&Method::Unbounded { unbounded: 0, windows: 20 }), "one side has no window");
        let apart = method(&Method::Apart(DisjointLatencies { faster_ms: 1.5, slower_ms: 3.0 }));
        assert!(apart.contains("do not overlap: 99 % were at most 1.50 ms on one side"), "{apart}");
    }
}
