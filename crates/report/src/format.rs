//! Formats numbers for people: always with a unit, never `NaN` or `inf`.

use std::borrow::Cow;

use jiff::Timestamp;
use rolldrop_explain::model::Bounded;
pub(super) use rolldrop_explain::model::figure_text::{
    NONE, count, counted, either, len, percent, percent_down, percent_up,
};
use rolldrop_record::Stamp;

/// Formats a count with bounds: as one number if it is known exactly, otherwise as `3 to 9 (best estimate 5.2)`.
pub(super) fn bounded(n: &Bounded) -> String {
    let range = match n.at_least {
        _ if n.is_exact() => return count(n.at_most),
        0 => format!("up to {}", count(n.at_most)),
        least => format!("{} to {}", count(least), count(n.at_most)),
    };
    format!("{range} (best estimate {:.1})", n.estimate)
}

/// Formats a count with bounds, as briefly as a table or a chart requires.
pub(super) fn range(n: &Bounded) -> String {
    match n.is_exact() {
        true => count(n.at_most),
        false => format!("{} to {}", count(n.at_least), count(n.at_most)),
    }
}

/// Formats a value with `in_words`, or returns [`NONE`] if there is no value.
pub(super) fn or_none<T>(value: Option<T>, in_words: impl FnOnce(T) -> String) -> String {
    value.map_or_else(|| NONE.to_owned(), in_words)
}

/// Formats seconds with a precision that suits their size, without the unit: `0.098`, `3.021`, `30.1`.
pub(super) fn seconds(value: f64) -> String {
    match value.abs() {
        v if !v.is_finite() => NONE.to_owned(),
        v if v < 10.0 => format!("{value:.3}"),
        _ => format!("{value:.1}"),
    }
}

/// Formats seconds with the unit; returns [`NONE`] if the value is not finite.
pub(super) fn seconds_unit(value: f64) -> String {
    with_unit(seconds(value), "s")
}

/// Formats a point in time in machine-readable form, to the nanosecond: `2026-01-02T15:04:05.678901234Z`.
pub(super) fn rfc3339(at: Stamp) -> String {
    timestamp(at).strftime("%Y-%m-%dT%H:%M:%S.%9fZ").to_string()
}

/// Formats a point in time that is known to the second, such as a deletion by others: `2026-01-02T15:04:05Z`.
pub fn rfc3339_seconds(at: Stamp) -> String {
    timestamp(at).strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

/// Formats a point in time with its time zone: `2026-01-02 15:04:05.678 UTC`.
pub(super) fn utc(at: Stamp) -> String {
    timestamp(at).strftime("%Y-%m-%d %H:%M:%S.%3f UTC").to_string()
}

fn timestamp(at: Stamp) -> Timestamp {
    Timestamp::from_nanosecond(i128::from(at.unix_ns())).unwrap_or_default()
}

/// Formats milliseconds with three significant digits, without the unit.
pub(super) fn millis(value: f64) -> String {
    match value.abs() {
        v if !v.is_finite() => NONE.to_owned(),
        v if v < 10.0 => format!("{value:.2}"),
        v if v < 100.0 => format!("{value:.1}"),
        _ => grouped(value),
    }
}

/// Formats milliseconds with the unit; returns [`NONE`] if the value is not finite.
pub(super) fn millis_unit(value: f64) -> String {
    with_unit(millis(value), "ms")
}

/// Formats a rate or a similar figure, with up to two decimals if it is not a whole number.
pub(super) fn plain(value: f64) -> String {
    if !value.is_finite() {
        return NONE.to_owned();
    }
    if value.abs() >= 1000.0 || value.fract() == 0.0 {
        return grouped(value);
    }
    let text = format!("{value:.2}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// Appends the unit to a formatted value, unless it is [`NONE`].
pub(super) fn with_unit(value: String, unit: &str) -> String {
    if value == NONE { value } else { format!("{value} {unit}") }
}

/// Joins items as `a`, `a and b`, `a, b and c`.
pub(super) fn list<S: AsRef<str>>(items: &[S]) -> String {
    let mut out = String::new();
    for (i, item) in items.iter().enumerate() {
        match i {
            0 => {}
            _ if i + 1 == items.len() => out.push_str(" and "),
            _ => out.push_str(", "),
        }
        out.push_str(item.as_ref());
    }
    out
}

/// Breaks `text` at spaces into lines of at most `width` characters. A word longer than that gets its own line.
pub(super) fn wrap(text: &str, width: usize) -> Vec<String> {
    let one_line = text.split_whitespace().collect::<Vec<_>>().join(" ");
    if one_line.is_empty() {
        return Vec::new();
    }
    let options =
        textwrap::Options::new(width).break_words(false).word_splitter(textwrap::WordSplitter::NoHyphenation);
    textwrap::wrap(&one_line, options).into_iter().map(Cow::into_owned).collect()
}

/// Formats a value of about 1,000 or more with thousands separators and without decimals.
fn grouped(value: f64) -> String {
    let whole = format!("{value:.0}");
    match whole.parse::<u64>() {
        Ok(n) => count(n),
        Err(_) => whole,
    }
}

/// Formats a duration that may be as long as a month.
pub(super) fn long_time(seconds: f64) -> String {
    match seconds {
        s if s < 120.0 => format!("{s:.1} s"),
        s if s < 7200.0 => format!("{:.1} min", s / 60.0),
        s if s < 48.0 * 3600.0 => format!("{:.1} h", s / 3600.0),
        s => format!("{:.1} days", s / 86400.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn number_precision_follows_magnitude() {
        assert_eq!(
            [count(0), count(999), count(9_000), count(1_234_567)],
            ["0", "999", "9,000", "1,234,567"]
        );
        assert_eq!([seconds(0.0984), seconds(3.016), seconds(-30.06)], ["0.098", "3.016", "-30.1"]);
        assert_eq!([millis(1.234), millis(45.67), millis(5012.3)], ["1.23", "45.7", "5,012"]);
        assert_eq!([plain(300.0), plain(2.5), plain(12_000.0)], ["300", "2.5", "12,000"]);
        assert_eq!(
            [percent(0.0), percent(0.00267), percent(0.368), percent(1.0)],
            ["0 %", "0.267 %", "36.8 %", "100 %"]
        );
    }

    #[test]
    fn uncertain_count_shows_as_interval() {
        let between = |at_least, at_most, estimate| bounded(&Bounded { at_least, at_most, estimate });
        assert_eq!(between(3, 9, 5.21), "3 to 9 (best estimate 5.2)");
        assert_eq!(between(0, 1_234, 7.0), "up to 1,234 (best estimate 7.0)");
        assert_eq!([bounded(&Bounded::exactly(0)), bounded(&Bounded::exactly(8))], ["0", "8"]);
    }

    #[test]
    fn times_include_their_zone() {
        assert_eq!(utc(Stamp::from_unix_ns(1_767_366_245_678_999_999)), "2026-01-02 15:04:05.678 UTC");
    }

    #[test]
    fn non_finite_number_shows_as_dash() {
        for value in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
            for text in [seconds(value), seconds_unit(value), millis(value), plain(value), percent(value)] {
                assert_eq!(text, NONE);
            }
        }
    }

    #[test]
    fn words_agree_with_their_count() {
        assert_eq!(
            [counted(1, "pod"), counted(0, "pod"), counted(2_000, "pod")],
            ["1 pod", "0 pods", "2,000 pods"]
        );
        assert_eq!(
            [list::<&str>(&[]), list(&["a"]), list(&["a", "b"]), list(&["a", "b", "c"])],
            ["", "a", "a and b", "a, b and c"]
        );
    }

    #[test]
    fn text_wraps_to_width() {
        assert_eq!(wrap("one two  three", 7), ["one two", "three"]);
        assert_eq!(wrap("unbreakable", 3), ["unbreakable"]);
        assert!(wrap("", 10).is_empty());
    }
}
