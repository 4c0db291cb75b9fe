//! Formats figures for use in sentences.

/// Text shown instead of a value that is missing or not finite.
pub const NONE: &str = "–";

/// Formats a count with separators: `9000` as `9,000`.
pub fn count(n: u64) -> String {
    let digits = n.to_string();
    let mut out = String::with_capacity(digits.len() + digits.len() / 3);
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// Formats a count with its noun: `1 pod`, `3 pods`. Forms the plural with an `s`; for other nouns use [`either`].
pub fn counted(n: u64, noun: &str) -> String {
    format!("{} {noun}{}", count(n), either(n, "", "s"))
}

/// Returns `one` if `n` is 1, else `many`.
pub fn either<'a>(n: u64, one: &'a str, many: &'a str) -> &'a str {
    if n == 1 { one } else { many }
}

/// Converts a length to a count.
pub fn len(n: usize) -> u64 {
    u64::try_from(n).unwrap_or(u64::MAX)
}

/// Formats a share as a percentage with three significant digits, such as `0.0512 %`. A share near 1 gets those of its
/// complement, such as `99.9833 %`, so that only 1 reads `100 %`.
pub fn percent(share: f64) -> String {
    percentage(share, f64::round)
}

/// Formats the upper bound of a share like [`percent`], rounded up.
pub fn percent_up(share: f64) -> String {
    percentage(share, f64::ceil)
}

/// Formats the lower bound of a share like [`percent`], rounded down.
pub fn percent_down(share: f64) -> String {
    percentage(share, f64::floor)
}

fn percentage(share: f64, whole: fn(f64) -> f64) -> String {
    let percent = share * 100.0;
    // Shares come from counts: a smaller difference is an error of floating-point arithmetic.
    let negligible = 1e-9;
    let [part, rest] = [percent.abs(), (100.0 - percent.abs()).abs()];
    if !percent.is_finite() {
        return NONE.to_owned();
    }
    if part < negligible || rest < negligible {
        return format!("{percent:.0} %").replace("-0", "0");
    }
    let scale = |decimals: usize| 10f64.powf(decimals as f64);
    let decimals = (0..12).find(|decimals| part.min(rest) * scale(*decimals) >= 100.0).unwrap_or(12);
    let scaled = percent * scale(decimals);
    let nearest = scaled.round();
    let is_whole = (scaled - nearest).abs() < 1e-12 * scaled.abs();
    let digits = if is_whole { nearest } else { whole(scaled) };
    let text = format!("{:.decimals$}", digits / scale(decimals));
    let text = if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.') } else { &text };
    format!("{text} %")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_formatted_as_percentages() {
        assert_eq!(
            [0.0, 0.001, 0.0005123, 0.9, 1.0, 0.99999, 5999.0 / 6000.0].map(percent),
            ["0 %", "0.1 %", "0.0512 %", "90 %", "100 %", "99.999 %", "99.9833 %"]
        );
        assert_eq!(
            [0.1, 0.368, -0.0267, 1.5, 4e-9].map(percent),
            ["10 %", "36.8 %", "-2.67 %", "150 %", "0.0000004 %"]
        );
        assert_eq!([1e-18, -1e-18].map(percent), ["0 %", "0 %"], "errors of arithmetic");
    }

    #[test]
    fn bounds_of_shares_are_rounded_outwards() {
        assert_eq!([0.0981, 0.776393, 0.99999, 0.0].map(percent_up), ["9.81 %", "77.7 %", "99.999 %", "0 %"]);
        assert_eq!([0.1, 0.898542, 0.9999, 1.0].map(percent_down), ["10 %", "89.8 %", "99.99 %", "100 %"]);
    }
}
