//! Metrics as text, in the two formats that Prometheus reads.
//!
//! Prometheus' own format (prometheus.io/docs/instrumenting/exposition_formats) is the default. OpenMetrics 1.0
//! (prometheus.io/docs/specs/om/open_metrics_spec) is for scrapers that ask for it: only it has exemplars.

use std::fmt::{Display, Write as _};

use super::Stamp;
use super::shown::one_line;

/// Maximum total length of the names and values of an exemplar's labels, in characters (OpenMetrics 1.0).
const MAX_EXEMPLAR_CHARS: usize = 128;
/// Exemplar label that names the pod.
const POD: &str = "pod";
/// Suffix of counter names.
const TOTAL: &str = "_total";

/// A text format for metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetricsFormat {
    /// Prometheus' own format.
    Prometheus,
    /// OpenMetrics 1.0.
    OpenMetrics,
}

impl MetricsFormat {
    /// Returns the format's content type.
    pub const fn content_type(self) -> &'static str {
        match self {
            Self::Prometheus => "text/plain; version=0.0.4; charset=utf-8",
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
        }
    }

    /// Returns the format that a request with this `Accept` header prefers.
    pub fn accepted(accept: &str) -> Self {
        let ranges = || accept.split(',').map(|range| range.split(';').map(str::trim));
        let quality = |types: &[&str]| {
            let wanted = ranges().filter_map(|mut range| {
                let name = range.next()?;
                if !types.iter().any(|wanted| name.eq_ignore_ascii_case(wanted)) {
                    return None;
                }
                range
                    .find_map(|parameter| parameter.strip_prefix("q="))
                    .map_or(Some(1.0), |q| q.parse::<f64>().ok())
            });
            wanted.fold(0.0, f64::max)
        };
        let open = quality(&["application/openmetrics-text"]);
        match open > 0.0 && open >= quality(&["text/plain", "text/*"]) {
            true => Self::OpenMetrics,
            false => Self::Prometheus,
        }
    }
}

/// Type of a metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetricKind {
    /// A count that only increases; its name ends with `_total`.
    Counter,
    /// A value that may decrease.
    Gauge,
    /// Counts of values by size.
    Histogram,
}

/// Exemplar of a counter: a pod, and its part of the count.
#[derive(Clone, Debug, PartialEq)]
pub struct Exemplar {
    /// Name of the pod.
    pub pod: String,
    /// Part of the count that belongs to the pod.
    pub value: u64,
    /// Time at which this part was counted.
    pub at: Stamp,
}

/// Metrics that are being written.
#[derive(Debug)]
pub struct MetricsText {
    out: String,
    format: MetricsFormat,
}

// Writing to a string cannot fail.
impl MetricsText {
    /// Creates an empty text.
    pub const fn new(format: MetricsFormat) -> Self {
        Self { out: String::new(), format }
    }

    /// Begins a metric; its samples must follow.
    pub fn family(&mut self, name: &str, kind: MetricKind, help: &str) {
        let (name, kind) = match (kind, self.format) {
            // Only the samples of a counter have the suffix.
            (MetricKind::Counter, MetricsFormat::OpenMetrics) => {
                (name.strip_suffix(TOTAL).unwrap_or(name), "counter")
            }
            (MetricKind::Counter, MetricsFormat::Prometheus) => (name, "counter"),
            (MetricKind::Gauge, _) => (name, "gauge"),
            (MetricKind::Histogram, _) => (name, "histogram"),
        };
        let _ = writeln!(self.out, "# HELP {name} {help}\n# TYPE {name} {kind}");
    }

    /// Writes a sample.
    pub fn sample(&mut self, name: &str, labels: &[(&str, &str)], value: impl Display) {
        self.sample_with(name, labels, value, None);
    }

    /// Writes a sample with an exemplar, if the format has exemplars and the pod's name is short enough.
    pub fn sample_with(
        &mut self,
        name: &str,
        labels: &[(&str, &str)],
        value: impl Display,
        exemplar: Option<&Exemplar>,
    ) {
        self.out.push_str(name);
        for (index, (key, text)) in labels.iter().enumerate() {
            let open = if index == 0 { '{' } else { ',' };
            let _ = write!(self.out, "{open}{key}=\"{}\"", label(text));
        }
        if !labels.is_empty() {
            self.out.push('}');
        }
        let _ = write!(self.out, " {value}");
        if let Some(Exemplar { pod, value, at }) =
            exemplar.filter(|_| self.format == MetricsFormat::OpenMetrics)
        {
            let (pod, ms) = (label(pod), at.unix_ns() / 1_000_000);
            if POD.len() + pod.chars().count() <= MAX_EXEMPLAR_CHARS {
                let _ = write!(self.out, " # {{{POD}=\"{pod}\"}} {value} {}.{:03}", ms / 1000, ms % 1000);
            }
        }
        self.out.push('\n');
    }

    /// Writes a histogram. `counts` has the number of values in each bucket, which are not cumulative, followed by the
    /// number of values above all bounds.
    pub fn histogram(
        &mut self,
        name: &str,
        labels: &[(&str, &str)],
        bounds: impl IntoIterator<Item = f64>,
        counts: &[u64],
        sum: f64,
    ) {
        let bounds = bounds.into_iter().map(|bound| match self.format {
            MetricsFormat::Prometheus => bound.to_string(),
            // OpenMetrics requires a decimal point.
            MetricsFormat::OpenMetrics => format!("{bound:?}"),
        });
        let bounds: Vec<String> = bounds.chain(["+Inf".to_owned()]).collect();
        let mut below = 0;
        for (bound, count) in bounds.iter().zip(counts) {
            below += count;
            let labels = [labels, &[("le", bound)]].concat();
            self.sample(&format!("{name}_bucket"), &labels, below);
        }
        self.sample(&format!("{name}_sum"), labels, sum);
        self.sample(&format!("{name}_count"), labels, below);
    }

    /// Returns the finished text.
    pub fn finish(mut self) -> String {
        if self.format == MetricsFormat::OpenMetrics {
            self.out.push_str("# EOF\n");
        }
        self.out
    }
}

/// Escapes a label's value, and makes control characters visible.
pub fn label(text: &str) -> String {
    one_line(text).replace('\\', "\\\\").replace('"', "\\\"")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accept_header_chooses_format() {
        for (accept, format) in [
            ("", MetricsFormat::Prometheus),
            ("*/*", MetricsFormat::Prometheus),
            ("text/plain;version=0.0.4", MetricsFormat::Prometheus),
            ("application/openmetrics-text", MetricsFormat::OpenMetrics),
            ("Application/OpenMetrics-Text; version=1.0.0", MetricsFormat::OpenMetrics),
            // Prometheus 2.42, and Prometheus 3.
            (
                "application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,text/plain;\
              version=0.0.4;q=0.5,*/*;q=0.1",
                MetricsFormat::OpenMetrics,
            ),
            (
                "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.5,text/plain;version=1.0.0;q=0.3,\
              */*;q=0.1",
                MetricsFormat::OpenMetrics,
            ),
            ("application/openmetrics-text;q=0.2,text/plain;q=0.9", MetricsFormat::Prometheus),
            ("application/openmetrics-text;q=0", MetricsFormat::Prometheus),
            ("application/openmetrics-text;q=NaN", MetricsFormat::Prometheus),
            ("application/openmetrics-text;q=", MetricsFormat::Prometheus),
        ] {
            assert_eq!(MetricsFormat::accepted(accept), format, "{accept}");
        }
    }

    fn written(format: MetricsFormat, pod: &str) -> String {
        let mut text = MetricsText::new(format);
        text.family("lost_total", MetricKind::Counter, "Lost.");
        let exemplar = Exemplar { pod: pod.to_owned(), value: 3, at: Stamp::from_unix_ns(1_500_020_000_000) };
        text.sample_with("lost_total", &[("a", "b\"\\\n\u{1b}"), ("c", "")], 7, Some(&exemplar));
        text.family("took_seconds", MetricKind::Histogram, "Time.");
        text.histogram("took_seconds", &[("a", "b")], [0.5, 1.0], &[2, 0, 1], 7.5);
        text.finish()
    }

    #[test]
    fn formats_differ_as_specified() {
        let expected = concat!(
            "# HELP lost_total Lost.\n",
            "# TYPE lost_total counter\n",
            "lost_total{a=\"b\\\"\\\\\\\\u{a}\\\\u{1b}\",c=\"\"} 7\n",
            "# HELP took_seconds Time.\n",
            "# TYPE took_seconds histogram\n",
            "took_seconds_bucket{a=\"b\",le=\"0.5\"} 2\n",
            "took_seconds_bucket{a=\"b\",le=\"1\"} 2\n",
            "took_seconds_bucket{a=\"b\",le=\"+Inf\"} 3\n",
            "took_seconds_sum{a=\"b\"} 7.5\n",
            "took_seconds_count{a=\"b\"} 3\n",
        );
        assert_eq!(written(MetricsFormat::Prometheus, "web-1"), expected);
        let open = expected
            .replace(" lost_total ", " lost ")
            .replace("} 7\n", "} 7 # {pod=\"web-1\"} 3 1500.020\n")
            .replace("le=\"1\"", "le=\"1.0\"");
        assert_eq!(written(MetricsFormat::OpenMetrics, "web-1"), open + "# EOF\n");
    }

    #[test]
    fn exemplar_respects_length_limit() {
        let with =
            |length: usize| written(MetricsFormat::OpenMetrics, &"x".repeat(length)).contains(" # {pod=");
        assert!(with(125) && !with(126));
    }
}
