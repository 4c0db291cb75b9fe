//! Formats figures for use in sentences.

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

/// Formats a share as a percentage with three significant digits, such as `0.0512 %`.
pub fn percent(share: f64) -> String {
    let percent = share * 100.0;
    let decimals = match percent.abs() {
        0.0 => 0,
        p if !(0.01..99.9).contains(&p) => 4,
        p if p < 1.0 => 3,
        _ => 2,
    };
    let text = format!("{percent:.decimals$}");
    let text = if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.') } else { &text };
    format!("{text} %")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_formatted_as_percentages() {
        assert_eq!(
            [0.0, 0.001, 0.0005123, 0.9, 1.0, 0.99999].map(percent),
            ["0 %", "0.1 %", "0.051 %", "90 %", "100 %", "99.999 %"]
        );
    }
}
